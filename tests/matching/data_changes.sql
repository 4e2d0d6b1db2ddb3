-- What the views do not know of: a partition with rows in new parts, a mutated one, one that is gone, a new one. The rest
-- is as it was.
INSERT INTO sales SELECT * REPLACE (day + 3 AS day, price + 1 AS price) FROM sales WHERE toYear(day) = 1995 AND shop < 3 AND toYear(day + 3) = 1995;

ALTER TABLE sales DELETE IN PARTITION 1996 WHERE product = 3 SETTINGS mutations_sync = 2;

ALTER TABLE sales DROP PARTITION 1997;

INSERT INTO sales SELECT * REPLACE (day + 5000 AS day, 'new' AS region, NULL AS discount) FROM sales WHERE shop = 7;

INSERT INTO nothing VALUES ('2020-01-01', 'a', 1), ('2020-01-02', 'b', 2);
