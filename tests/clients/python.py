"""What an application does with clickhouse-connect. Prints what it sees; the test compares two addresses.

usage: python.py PORT DATABASE
"""

import asyncio
import sys
from datetime import datetime
from decimal import Decimal

import clickhouse_connect
from clickhouse_connect.driver.external import ExternalData

port, database = int(sys.argv[1]), sys.argv[2]


def client(**options):
    return clickhouse_connect.get_client(host="127.0.0.1", port=port, database=database, **options)


def attempt(what, action):
    try:
        print(what, action())
    except Exception as error:
        # The address is in some texts, and it is the one thing that may differ.
        print(what, type(error).__name__, str(error).replace(str(port), "PORT"))


for compress in (False, True, "lz4", "zstd", "gzip"):
    c = client(compress=compress)
    c.command("CREATE OR REPLACE TABLE items (id UInt32, name String, price Decimal(9, 2), at DateTime('UTC'), tags Array(Nullable(String))) ENGINE = MergeTree ORDER BY id")
    rows = [[i, f"näme {i}", Decimal(i) / 4, datetime(2024, 1, 1 + i % 28), ["a", None][: i % 3]] for i in range(5000)]
    c.insert("items", rows, column_names=["id", "name", "price", "at", "tags"])
    answer = c.query("SELECT * FROM items WHERE id % 500 = 1 ORDER BY id")
    print(compress, answer.column_names, [t.name for t in answer.column_types], answer.result_rows)
    print(compress, c.query("SELECT count(), sum(price), uniqExact(name) FROM items").result_rows)
    with c.query_row_block_stream("SELECT number FROM numbers(300000)") as stream:
        print(compress, sum(len(block) for block in stream))
    print(compress, c.raw_query("SELECT id, name FROM items ORDER BY id LIMIT 3", fmt="JSONCompactEachRow"))
    # Answered by a view where there is one, or an error: direct, ClickHouse does not know the header.
    for sql in ("SELECT region, sum(amount) AS total, avg(amount), count() FROM sales GROUP BY region ORDER BY total DESC",
                "SELECT toYear(day) AS year, count() FROM sales WHERE region IN ('north', 'south') GROUP BY year ORDER BY year",
                "SELECT region, sum(amount) FROM sales WHERE region = {r:String} GROUP BY region"):
        answer = c.query(sql, parameters={"r": "east"}, transport_settings={"X-Tributary": "require"})
        print(compress, answer.column_names, [t.name for t in answer.column_types], answer.result_rows)
    attempt(compress, lambda: c.query("SELECT no_such_column FROM items"))
    attempt(compress, lambda: c.query("SELEC 1"))
    attempt(compress, lambda: c.query("SELECT throwIf(number = 200000) FROM numbers(300000)").result_rows)
    attempt(compress, lambda: c.insert("items", [["x"]], column_names=["id"]))
    c.close()

c = client()
print(c.query("SELECT {a:String} || toString({b:Int32})", parameters={"a": "ä'\\", "b": -5}).result_rows)
print(c.query("SELECT %(a)s", parameters={"a": "it's"}).result_rows)
print(c.query("SELECT number FROM numbers(10)", settings={"limit": 3, "max_block_size": 2}).result_rows)
print(c.raw_insert("items", ["id", "name"], b"7,seven\n8,eight\n", fmt="CSV").written_rows)
print(c.query("SELECT sum(x) FROM extra", external_data=ExternalData(file_name="extra.csv", data=b"1\n2\n", fmt="CSV", structure=["x UInt32"])).result_rows)
print(c.command("SELECT 1"), c.command("EXISTS TABLE items"))
attempt("unknown setting", lambda: c.query("SELECT 1", settings={"no_such_setting": 1}))

s = client(session_id=f"{database}-{port}")
s.command("CREATE TEMPORARY TABLE kept (x UInt8)")
s.insert("kept", [[1], [2]], column_names=["x"], database="")
print(s.query("SELECT sum(x) FROM kept").result_rows)
s.command("SET max_threads = 3")
print(s.query("SELECT getSetting('max_threads')").result_rows)

attempt("wrong password", lambda: client(username="reader", password="wrong"))
print(client(username="reader", password="reader").query("SELECT currentUser()").result_rows)


async def several():
    a = await clickhouse_connect.get_async_client(host="127.0.0.1", port=port, database=database, autogenerate_session_id=False)
    answers = await asyncio.gather(*[a.query(f"SELECT {i}, count() FROM items") for i in range(20)])
    await a.close()
    return [answer.result_rows for answer in answers]


print(asyncio.run(several()))
