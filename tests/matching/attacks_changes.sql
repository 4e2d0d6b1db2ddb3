INSERT INTO b1 SELECT number % 10, number % 3, number % 4, number + 5000, if(number % 5 = 0, NULL, -toInt32(number)), toString(number % 9), toDate('2020-03-01') + number FROM numbers(100);

INSERT INTO b3 SELECT if(number % 2 = 0, nan, 7), number + 1000, toDateTime(number * 6000, 'UTC') FROM numbers(60);

INSERT INTO b4 SELECT number % 7, (number % 3, 1) FROM numbers(10);
