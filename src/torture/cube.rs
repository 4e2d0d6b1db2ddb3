//! Rows of the fact table, and exact aggregates of multisets of them that can be added and taken away.

use std::collections::BTreeMap;

pub const REGIONS: [&str; 5] = ["centre", "east", "north", "south", "west"];
pub const CATEGORIES: [&str; 4] = ["books", "food", "tools", "toys"];
/// Products are numbered from 0.
pub const PRODUCTS: usize = 12;
/// Partitions are the months of 2024.
pub const MONTHS: usize = 12;
/// The days of a month on which anything is sold.
pub const DAYS: [u8; 4] = [1, 9, 17, 25];
pub const PRICE_MAX: u32 = 500;

/// One row of the table `sales`, but for the number of its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sale {
    pub cell: Cell,
    pub amount: i64,
    pub price: u32,
}

/// What filters and groups can tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    pub day: Day,
    /// Position in [`REGIONS`].
    pub region: u8,
    pub product: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day {
    /// From 0; also the partition.
    pub month: u8,
    /// Position in [`DAYS`].
    pub day: u8,
}

impl Day {
    pub fn text(self) -> String {
        format!("2024-{:02}-{:02}", self.month + 1, DAYS[usize::from(self.day)])
    }

    /// `toYYYYMM`, and the partition's id.
    pub fn year_month(self) -> u32 {
        202_400 + u32::from(self.month) + 1
    }
}

/// Aggregates of a multiset of rows from which rows may be taken away again. A change that takes rows away has negative
/// numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sums {
    pub rows: i64,
    pub amount: i64,
    /// How many rows have each price: the least and the greatest are known whatever is taken away.
    pub prices: BTreeMap<u32, i64>,
}

impl Sums {
    pub fn is_empty(&self) -> bool {
        self.rows == 0 && self.amount == 0 && self.prices.is_empty()
    }

    /// Adds `times` times the other's rows, 1 or -1.
    pub fn add(&mut self, other: &Sums, times: i64) {
        self.rows += times * other.rows;
        self.amount += times * other.amount;
        for (price, rows) in &other.prices {
            self.add_price(*price, times * rows);
        }
    }

    fn add_price(&mut self, price: u32, rows: i64) {
        let known = self.prices.entry(price).or_default();
        *known += rows;
        if *known == 0 {
            self.prices.remove(&price);
        }
    }

    pub fn extremes(&self) -> (u32, u32) {
        let price = |entry: Option<(&u32, &i64)>| entry.map_or(0, |(price, _)| *price);
        (price(self.prices.first_key_value()), price(self.prices.last_key_value()))
    }
}

/// Sums by key, without those that are empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cube<K: Ord>(pub BTreeMap<K, Sums>);

impl<K: Ord> Default for Cube<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Copy> Cube<K> {
    pub fn add(&mut self, other: &Self, times: i64) {
        other.0.iter().for_each(|(key, sums)| self.add_sums(*key, sums, times));
    }

    pub fn add_sums(&mut self, key: K, sums: &Sums, times: i64) {
        let known = self.0.entry(key).or_default();
        known.add(sums, times);
        if known.is_empty() {
            self.0.remove(&key);
        }
    }
}

impl Cube<Cell> {
    /// The change that puts `rows` into the table (`times` is 1) or takes them out (-1).
    pub fn add_rows(&mut self, rows: &[Sale], times: i64) {
        for row in rows {
            let known = self.0.entry(row.cell).or_default();
            known.rows += times;
            known.amount += times * row.amount;
            known.add_price(row.price, times);
            if known.is_empty() {
                self.0.remove(&row.cell);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_can_be_taken_away() {
        let cell = |day, product| Cell { day: Day { month: 1, day }, region: 2, product };
        let rows = [
            Sale { cell: cell(0, 1), amount: -7, price: 3 },
            Sale { cell: cell(0, 1), amount: 7, price: 9 },
            Sale { cell: cell(1, 1), amount: 5, price: 3 },
        ];
        let mut cube = Cube::default();
        cube.add_rows(&rows, 1);
        assert_eq!(cube.0.len(), 2);
        assert_eq!(cube.0[&cell(0, 1)].extremes(), (3, 9));
        let mut change = Cube::default();
        change.add_rows(&rows[..1], -1);
        cube.add(&change, 1);
        let left = &cube.0[&cell(0, 1)];
        assert_eq!((left.rows, left.amount, left.extremes()), (1, 7, (9, 9)));
        cube.add_rows(&rows[1..], -1);
        assert_eq!(cube, Cube::default());
        assert_eq!((cell(0, 0).day.text(), cell(3, 0).day.text()), ("2024-02-01".into(), "2024-02-25".into()));
    }
}
