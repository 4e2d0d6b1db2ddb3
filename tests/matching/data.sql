-- Deterministic rows with the things that break hasty rewrites: NULLs, repeated and orphaned keys, skew, empty strings.
CREATE TABLE sales
(
    day Date, at DateTime('Europe/Berlin'), shop UInt32, region LowCardinality(String), city String, product UInt16,
    quantity UInt8, price UInt32, cost UInt32, discount Nullable(UInt8), delta Int16, weight Float64, tags Array(String)
)
ENGINE = MergeTree PARTITION BY toYear(day) ORDER BY (day, shop);

INSERT INTO sales
SELECT
    toDate('1995-01-01') + cityHash64('day', number) % 1700,
    toDateTime('1995-01-01 00:00:00', 'UTC') + cityHash64('at', number) % 140000000,
    cityHash64('shop', number) % 40,
    ['north', 'south', 'east', 'west', ''][cityHash64('region', cityHash64('shop', number) % 40) % 5 + 1],
    concat('city ', toString(cityHash64('shop', number) % 12)),
    least(cityHash64('p', number) % 30, cityHash64('q', number) % 30),
    cityHash64('quantity', number) % 50,
    cityHash64('price', number) % 100000,
    cityHash64('cost', number) % 60000,
    if(cityHash64('null', number) % 3 = 0, NULL, cityHash64('discount', number) % 11),
    toInt16(cityHash64('delta', number) % 400) - 200,
    (cityHash64('weight', number) % 1000) / 8,
    arrayMap(x -> concat('t', toString(x)), range(cityHash64('tags', number) % 4))
FROM numbers(30000);

CREATE TABLE shops (id UInt32, owner LowCardinality(String), opened Date) ENGINE = MergeTree ORDER BY id;

-- Shop 7 twice, shops from 35 on missing.
INSERT INTO shops
SELECT number, concat('owner ', toString(number % 9)), toDate('1990-01-01') + number * 37 FROM numbers(35)
UNION ALL SELECT 7, 'owner 2', toDate('1999-01-01');

CREATE TABLE nothing (day Date, region String, price UInt32) ENGINE = MergeTree ORDER BY day;

CREATE TABLE events (moment DateTime('UTC'), kind UInt8, amount Decimal(9, 2)) ENGINE = MergeTree ORDER BY moment;

INSERT INTO events SELECT toDateTime('2020-01-01 00:00:00', 'UTC') + number * 1000, number % 3, number % 5 * 1000000 / 7 FROM numbers(3000);
