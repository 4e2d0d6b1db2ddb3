//! The ten shapes of queries, and what they must answer over given rows.

use super::cube::{CATEGORIES, Cell, Cube, DAYS, Day, MONTHS, REGIONS, Sums};
use super::history::Assortment;
use super::random::Random;

pub const SHAPES: usize = 10;

/// One query, with its constants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    GrandTotal,
    ByRegion,
    /// Rows of these regions from a day on.
    Filtered {
        regions: Vec<u8>,
        from: Day,
    },
    /// Months out of days.
    ByMonth,
    Average {
        until_month: u8,
    },
    Extremes {
        from_month: u8,
    },
    CountOfNothing,
    /// Days with more rows than this.
    Having {
        rows: i64,
    },
    Star {
        from_month: u8,
    },
    SubQuery,
}

/// Groups by the number that stands for their key.
pub type Groups = Cube<u32>;

impl Shape {
    /// A query of the shape with this number, below [`SHAPES`].
    pub fn by_chance(number: usize, random: &mut Random) -> Self {
        match number {
            0 => Shape::GrandTotal,
            1 => Shape::ByRegion,
            2 => {
                let regions: Vec<u8> = (0..REGIONS.len() as u8).filter(|_| random.percent(50)).collect();
                let day = Day { month: random.below(MONTHS) as u8, day: random.below(DAYS.len()) as u8 };
                Shape::Filtered { regions: if regions.is_empty() { vec![0] } else { regions }, from: day }
            }
            3 => Shape::ByMonth,
            4 => Shape::Average { until_month: random.below(MONTHS) as u8 },
            5 => Shape::Extremes { from_month: random.below(MONTHS) as u8 },
            6 => Shape::CountOfNothing,
            7 => Shape::Having { rows: random.between(0, 1500) },
            8 => Shape::Star { from_month: random.below(MONTHS) as u8 },
            _ => Shape::SubQuery,
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Shape::GrandTotal => "grand total",
            Shape::ByRegion => "group by",
            Shape::Filtered { .. } => "filtered",
            Shape::ByMonth => "rollup",
            Shape::Average { .. } => "avg",
            Shape::Extremes { .. } => "min and max",
            Shape::CountOfNothing => "count over nothing",
            Shape::Having { .. } => "having",
            Shape::Star { .. } => "star join",
            Shape::SubQuery => "sub-query",
        }
    }

    pub fn sql(&self) -> String {
        match self {
            Shape::GrandTotal => "SELECT sum(amount) AS total, count() AS n FROM sales".into(),
            Shape::ByRegion => {
                "SELECT region, sum(amount) AS total, count() AS n FROM sales GROUP BY region ORDER BY region".into()
            }
            Shape::Filtered { regions, from } => {
                let names: Vec<String> = regions.iter().map(|r| format!("'{}'", REGIONS[usize::from(*r)])).collect();
                format!(
                    "SELECT sum(amount) AS total, count() AS n FROM sales WHERE region IN ({}) AND day >= '{}'",
                    names.join(", "),
                    from.text()
                )
            }
            Shape::ByMonth => "SELECT toYYYYMM(day) AS month, sum(amount) AS total, count() AS n FROM sales \
                               GROUP BY month ORDER BY month"
                .into(),
            Shape::Average { until_month } => format!(
                "SELECT region, avg(amount) AS mean FROM sales WHERE day < '{}' GROUP BY region ORDER BY region",
                next_month(*until_month)
            ),
            Shape::Extremes { from_month } => format!(
                "SELECT region, min(price) AS cheapest, max(price) AS dearest FROM sales WHERE day >= '{}' \
                 GROUP BY region ORDER BY region",
                first_of(*from_month)
            ),
            Shape::CountOfNothing => {
                "SELECT count() AS n, sum(amount) AS total FROM sales WHERE region = 'nowhere'".into()
            }
            Shape::Having { rows } => format!(
                "SELECT day, count() AS n, sum(amount) AS total FROM sales GROUP BY day HAVING n > {rows} ORDER BY day"
            ),
            Shape::Star { from_month } => format!(
                "SELECT category, sum(amount) AS total, count() AS n \
                 FROM sales JOIN products ON sales.product = products.product \
                 WHERE day >= '{}' GROUP BY category ORDER BY category",
                first_of(*from_month)
            ),
            Shape::SubQuery => "SELECT count() AS days, max(total) AS best, sum(n) AS sold FROM \
                                (SELECT day, sum(amount) AS total, count() AS n FROM sales GROUP BY day)"
                .into(),
        }
    }

    /// Whether the answer depends on the dimension table.
    pub fn joins(&self) -> bool {
        matches!(self, Shape::Star { .. })
    }

    fn key(&self, cell: &Cell, assortment: &Assortment) -> Option<u32> {
        let day = || u32::from(cell.day.month) * DAYS.len() as u32 + u32::from(cell.day.day);
        match self {
            Shape::GrandTotal => Some(0),
            Shape::ByRegion => Some(cell.region.into()),
            Shape::Filtered { regions, from } => (regions.contains(&cell.region) && cell.day >= *from).then_some(0),
            Shape::ByMonth => Some(cell.day.month.into()),
            Shape::Average { until_month } => (cell.day.month <= *until_month).then_some(cell.region.into()),
            Shape::Extremes { from_month } => (cell.day.month >= *from_month).then_some(cell.region.into()),
            Shape::CountOfNothing => None,
            Shape::Having { .. } | Shape::SubQuery => Some(day()),
            Shape::Star { from_month } => {
                let category = assortment[usize::from(cell.product)];
                category.filter(|_| cell.day.month >= *from_month).map(u32::from)
            }
        }
    }

    /// What the query sees of rows: those of its filter, in its groups, with the aggregates that it asks for.
    pub fn project(&self, rows: &Cube<Cell>, assortment: &Assortment) -> Groups {
        let with_prices = matches!(self, Shape::Extremes { .. });
        let mut groups = Groups::default();
        for (cell, sums) in &rows.0 {
            let Some(key) = self.key(cell, assortment) else { continue };
            if with_prices {
                groups.add_sums(key, sums, 1);
            } else {
                let plain = Sums { rows: sums.rows, amount: sums.amount, ..Sums::default() };
                groups.add_sums(key, &plain, 1);
            }
        }
        groups
    }

    /// The answer in the format TabSeparatedWithNamesAndTypes.
    pub fn answer(&self, groups: &Groups) -> String {
        let lines = |line: &dyn Fn(u32, &Sums) -> String| -> String {
            groups.0.iter().filter(|(_, sums)| sums.rows != 0).map(|(key, sums)| line(*key, sums)).collect()
        };
        let region = |key: u32| REGIONS[key as usize];
        let total = || groups.0.get(&0).map_or((0, 0), |sums| (sums.amount, sums.rows));
        match self {
            Shape::GrandTotal | Shape::Filtered { .. } => {
                let (amount, rows) = total();
                format!("total\tn\nInt64\tUInt64\n{amount}\t{rows}\n")
            }
            Shape::ByRegion => {
                let rows = lines(&|key, sums| format!("{}\t{}\t{}\n", region(key), sums.amount, sums.rows));
                format!("region\ttotal\tn\nLowCardinality(String)\tInt64\tUInt64\n{rows}")
            }
            Shape::ByMonth => {
                let rows = lines(&|key, sums| format!("{}\t{}\t{}\n", 202_401 + key, sums.amount, sums.rows));
                format!("month\ttotal\tn\nUInt32\tInt64\tUInt64\n{rows}")
            }
            Shape::Average { .. } => {
                let mean = |sums: &Sums| sums.amount as f64 / sums.rows as f64;
                let rows = lines(&|key, sums| format!("{}\t{}\n", region(key), mean(sums)));
                format!("region\tmean\nLowCardinality(String)\tFloat64\n{rows}")
            }
            Shape::Extremes { .. } => {
                let rows = lines(&|key, sums| {
                    let (least, greatest) = sums.extremes();
                    format!("{}\t{least}\t{greatest}\n", region(key))
                });
                format!("region\tcheapest\tdearest\nLowCardinality(String)\tUInt32\tUInt32\n{rows}")
            }
            Shape::CountOfNothing => "n\ttotal\nUInt64\tInt64\n0\t0\n".into(),
            Shape::Having { rows: limit } => {
                let rows = lines(&|key, sums| match sums.rows > *limit {
                    true => format!("{}\t{}\t{}\n", day_of(key).text(), sums.rows, sums.amount),
                    false => String::new(),
                });
                format!("day\tn\ttotal\nDate\tUInt64\tInt64\n{rows}")
            }
            Shape::Star { .. } => {
                let rows =
                    lines(&|key, sums| format!("{}\t{}\t{}\n", CATEGORIES[key as usize], sums.amount, sums.rows));
                format!("category\ttotal\tn\nLowCardinality(String)\tInt64\tUInt64\n{rows}")
            }
            Shape::SubQuery => {
                let days: Vec<&Sums> = groups.0.values().filter(|sums| sums.rows != 0).collect();
                let best = days.iter().map(|sums| sums.amount).max().unwrap_or(0);
                let sold: i64 = days.iter().map(|sums| sums.rows).sum();
                format!("days\tbest\tsold\nUInt64\tInt64\tUInt64\n{}\t{best}\t{sold}\n", days.len())
            }
        }
    }
}

fn day_of(key: u32) -> Day {
    Day { month: (key / DAYS.len() as u32) as u8, day: (key % DAYS.len() as u32) as u8 }
}

fn first_of(month: u8) -> String {
    Day { month, day: 0 }.text()
}

fn next_month(month: u8) -> String {
    if usize::from(month) + 1 == MONTHS { "2025-01-01".into() } else { first_of(month + 1) }
}
