INSERT INTO lineorder_flat
SELECT
    l.*,
    c.C_NAME, c.C_ADDRESS, c.C_CITY, c.C_NATION, c.C_REGION, c.C_PHONE, c.C_MKTSEGMENT,
    s.S_NAME, s.S_ADDRESS, s.S_CITY, s.S_NATION, s.S_REGION, s.S_PHONE,
    p.P_NAME, p.P_MFGR, p.P_CATEGORY, p.P_BRAND, p.P_COLOR, p.P_TYPE, p.P_SIZE, p.P_CONTAINER
FROM lineorder AS l
INNER JOIN customer AS c ON c.C_CUSTKEY = l.LO_CUSTKEY
INNER JOIN supplier AS s ON s.S_SUPPKEY = l.LO_SUPPKEY
INNER JOIN part AS p ON p.P_PARTKEY = l.LO_PARTKEY
WHERE l.LO_ORDERDATE >= toDate('{year}-01-01') + {first_day} AND l.LO_ORDERDATE < toDate('{year}-01-01') + {first_day} + {days}
