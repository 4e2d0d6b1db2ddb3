-- Cities as in customer.sql.
INSERT INTO supplier
WITH
    {nations} AS nations,
    {regions} AS regions,
    number + 1 AS k,
    cityHash64(k, 'supplier') AS h,
    (k * {stride} + {offset}) % 250 AS city,
    intDiv(city, 10) AS nation
SELECT
    k,
    concat('Supplier#', leftPad(toString(k), 9, '0')),
    substring(hex(MD5(toString(h))), 1, 10 + h % 16),
    concat(substring(rightPad(nations[nation + 1], 9, ' '), 1, 9), toString(city % 10)),
    nations[nation + 1],
    regions[nation + 1],
    concat(toString(10 + nation), '-', toString(100 + h % 900), '-', toString(100 + intDiv(h, 900) % 900), '-', toString(1000 + intDiv(h, 810000) % 9000))
FROM numbers_mt({suppliers})
