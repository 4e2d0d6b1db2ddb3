-- Orders {first_order} .. + {orders} that fall into {year}. An order has one to seven lines; everything about an order
-- comes out of one hash, everything about a line out of two. Prices are in cents.
INSERT INTO lineorder
SELECT
    orderkey,
    line,
    1 + intDiv(order_hash, 84210) % {customers},
    partkey,
    suppkey,
    orderdate,
    ['1-URGENT', '2-HIGH', '3-MEDIUM', '4-NOT SPECI', '5-LOW'][1 + intDiv(order_hash, 16842) % 5],
    0,
    quantity,
    extended,
    arraySum(arrayMap((e, h) -> intDiv(e * (100 - intDiv(h, 50) % 11) * (100 + intDiv(h, 550) % 9), 10000), extendeds, hashes)),
    discount,
    intDiv(extended * (100 - discount), 100),
    intDiv(price * 6, 10),
    intDiv(hash, 550) % 9,
    orderdate + 30 + intDiv(hash, 34650) % 61,
    ['REG AIR', 'AIR', 'RAIL', 'SHIP', 'TRUCK', 'MAIL', 'FOB'][1 + intDiv(hash, 4950) % 7]
FROM
(
    SELECT
        number + 1 AS orderkey,
        cityHash64(orderkey, {salt}) AS order_hash,
        toDate('1992-01-01') + order_hash % 2406 AS orderdate,
        range(1, 2 + intDiv(order_hash, 2406) % 7) AS line_numbers,
        arrayMap(l -> cityHash64(order_hash, l), line_numbers) AS hashes,
        arrayMap(h -> 1 + intHash64(h) % {parts}, hashes) AS partkeys,
        arrayMap(p -> 90000 + intDiv(p, 10) % 20001 + 100 * (p % 1000), partkeys) AS prices,
        arrayMap((p, h) -> p * (1 + h % 50), prices, hashes) AS extendeds
    FROM numbers_mt({first_order}, {orders})
    WHERE toYear(orderdate) = {year}
)
ARRAY JOIN
    line_numbers AS line,
    hashes AS hash,
    partkeys AS partkey,
    prices AS price,
    extendeds AS extended,
    arrayMap(h -> 1 + h % 50, hashes) AS quantity,
    arrayMap(h -> intDiv(h, 50) % 11, hashes) AS discount,
    arrayMap(h -> 1 + intDiv(h, 2113650) % {suppliers}, hashes) AS suppkey
