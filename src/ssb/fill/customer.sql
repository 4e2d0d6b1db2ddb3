-- 250 cities in turn: city = nation * 10 + digit. The stride spreads even the first twenty keys over the nations and
-- puts UNITED KI1, UNITED KI5 and cities of the United States among them, so that no query is empty at small scales.
INSERT INTO customer
WITH
    {nations} AS nations,
    {regions} AS regions,
    number + 1 AS k,
    cityHash64(k, 'customer') AS h,
    (k * {stride} + {offset}) % 250 AS city,
    intDiv(city, 10) AS nation
SELECT
    k,
    concat('Customer#', leftPad(toString(k), 9, '0')),
    substring(hex(MD5(toString(h))), 1, 10 + h % 16),
    concat(substring(rightPad(nations[nation + 1], 9, ' '), 1, 9), toString(city % 10)),
    nations[nation + 1],
    regions[nation + 1],
    concat(toString(10 + nation), '-', toString(100 + h % 900), '-', toString(100 + intDiv(h, 900) % 900), '-', toString(1000 + intDiv(h, 810000) % 9000)),
    ['AUTOMOBILE', 'BUILDING', 'FURNITURE', 'MACHINERY', 'HOUSEHOLD'][1 + intDiv(h, 7290000000) % 5]
FROM numbers_mt({customers})
