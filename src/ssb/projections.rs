//! The peer: ClickHouse's own projections, made for the same queries on a copy of the flat table.
//!
//! One aggregate projection per view of `views/ssb_flat.yaml`, with the same dimensions and sums, so that both hold the
//! same information. A projection can have no WHERE, so where the view is partial, the projection covers all years. The
//! copy shares its columns with the original on disk (ATTACH PARTITION FROM links files), and only it has projections, so
//! that neither the raw times nor the views are touched by them.

use super::generate::GenerateError;
use crate::upstream::Upstream;

/// Copy of `lineorder_flat` that has the projections.
pub const PROJECTED_TABLE: &str = "lineorder_flat_projected";

const PROJECTIONS: [(&str, &str); 6] = [
    (
        "discounts_by_week",
        "SELECT toYear(LO_ORDERDATE), toYYYYMM(LO_ORDERDATE), toISOWeek(LO_ORDERDATE), LO_DISCOUNT, LO_QUANTITY,
            sum(LO_EXTENDEDPRICE * LO_DISCOUNT)
         GROUP BY toYear(LO_ORDERDATE), toYYYYMM(LO_ORDERDATE), toISOWeek(LO_ORDERDATE), LO_DISCOUNT, LO_QUANTITY",
    ),
    (
        "brands",
        "SELECT S_REGION, P_CATEGORY, P_BRAND, toYear(LO_ORDERDATE), sum(LO_REVENUE)
         GROUP BY S_REGION, P_CATEGORY, P_BRAND, toYear(LO_ORDERDATE)",
    ),
    (
        "nations",
        "SELECT C_REGION, S_REGION, P_MFGR, P_CATEGORY, toYear(LO_ORDERDATE), C_NATION, S_NATION,
            sum(LO_REVENUE), sum(LO_REVENUE - LO_SUPPLYCOST)
         GROUP BY C_REGION, S_REGION, P_MFGR, P_CATEGORY, toYear(LO_ORDERDATE), C_NATION, S_NATION",
    ),
    (
        "cities",
        "SELECT C_NATION, C_CITY, S_NATION, S_CITY, toYear(LO_ORDERDATE), sum(LO_REVENUE)
         GROUP BY C_NATION, C_CITY, S_NATION, S_CITY, toYear(LO_ORDERDATE)",
    ),
    (
        "cities_by_month",
        "SELECT C_CITY, S_CITY, toYYYYMM(LO_ORDERDATE), toYear(LO_ORDERDATE), sum(LO_REVENUE)
         GROUP BY C_CITY, S_CITY, toYYYYMM(LO_ORDERDATE), toYear(LO_ORDERDATE)",
    ),
    (
        "brands_by_city",
        "SELECT S_NATION, P_CATEGORY, toYear(LO_ORDERDATE), S_CITY, P_BRAND, sum(LO_REVENUE - LO_SUPPLYCOST)
         GROUP BY S_NATION, P_CATEGORY, toYear(LO_ORDERDATE), S_CITY, P_BRAND",
    ),
];

/// Makes the copy and builds its projections, in place of one made before. `progress` is told each projection.
pub async fn build(upstream: &Upstream, mut progress: impl FnMut(&str)) -> Result<(), GenerateError> {
    let table = PROJECTED_TABLE;
    let failed = |source| GenerateError::Statement { table, source };
    let run = async |sql: String| upstream.execute(&sql).await.map_err(failed);
    run(format!("DROP TABLE IF EXISTS {table} SYNC")).await?;
    run(format!("CREATE TABLE {table} AS lineorder_flat")).await?;
    for (name, select) in PROJECTIONS {
        run(format!("ALTER TABLE {table} ADD PROJECTION {name} ({select})")).await?;
    }
    run(format!("ALTER TABLE {table} ATTACH PARTITION ALL FROM lineorder_flat")).await?;
    for (name, _) in PROJECTIONS {
        progress(name);
        run(format!("ALTER TABLE {table} MATERIALIZE PROJECTION {name} SETTINGS mutations_sync = 1")).await?;
    }
    Ok(())
}
