CREATE TABLE b1 (k UInt8, a UInt8, b UInt8, x UInt32, n Nullable(Int32), s String, d Date) ENGINE = MergeTree ORDER BY k;

INSERT INTO b1 SELECT number % 10, number % 3, number % 4, number, if(number % 5 = 0, NULL, number), toString(number % 7), toDate('2020-01-01') + number % 100 FROM numbers(2000);

CREATE TABLE b2 (k UInt8, y UInt8, x UInt32) ENGINE = MergeTree ORDER BY k;

INSERT INTO b2 SELECT number % 4, number % 6, number FROM numbers(500);

CREATE TABLE b3 (f Float64, x UInt32, t DateTime('America/New_York')) ENGINE = MergeTree ORDER BY x;

INSERT INTO b3 SELECT if(number % 3 = 0, nan, number % 5 / 2), number, toDateTime(number * 600, 'UTC') FROM numbers(600);

CREATE TABLE b4 (a UInt8, tup Tuple(a UInt8, z UInt8)) ENGINE = MergeTree ORDER BY a;

INSERT INTO b4 SELECT number % 5, (number % 3, 1) FROM numbers(60);
