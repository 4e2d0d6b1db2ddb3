//! What was done to the tables, and when it may have taken effect.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::cube::{Cell, Cube, PRODUCTS};

/// Microseconds since the run began, by this process's clock.
pub type Moment = u64;

/// From the arrival of a query to its end.
pub type Window = (Moment, Moment);

/// Settled changes that are remembered to explain wrong answers by.
const REMEMBERED: usize = 400;

/// One atomic statement on the fact table.
#[derive(Debug, Clone)]
pub struct Change {
    pub number: u64,
    /// All its rows are of this month.
    pub partition: usize,
    /// For people.
    pub what: String,
    pub delta: Arc<Cube<Cell>>,
    /// Before the statement was sent: it has not taken effect earlier.
    pub begun: Moment,
    /// After its answer came: it has not taken effect later. `None`: not answered yet.
    pub ended: Option<Moment>,
}

/// The category of each product, or no row.
pub type Assortment = [Option<u8>; PRODUCTS];

/// One state of the dimension table.
#[derive(Debug, Clone)]
pub struct Stocked {
    pub assortment: Assortment,
    pub what: String,
    /// The change that made it, as in [`Change`].
    pub begun: Moment,
    pub ended: Option<Moment>,
}

/// Everything that was done, as far as a query under way may see it.
#[derive(Debug, Default)]
pub struct History {
    /// The rows after every change that is settled: ended before any query under way arrived.
    pub settled: Cube<Cell>,
    pub changes: Vec<Change>,
    /// The latest settled changes, oldest first.
    pub remembered: VecDeque<Change>,
    /// In order, since one task changes the table; the first one is settled.
    pub stocked: VecDeque<Stocked>,
    /// When the queries under way arrived.
    asking: BTreeMap<u64, Moment>,
    counter: u64,
}

impl History {
    pub fn new(assortment: Assortment) -> Self {
        let first = Stocked { assortment, what: "the first rows".into(), begun: 0, ended: Some(0) };
        Self { stocked: VecDeque::from([first]), ..Self::default() }
    }

    fn number(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// Notes a change whose statement is about to be sent.
    pub fn begin(&mut self, partition: usize, what: String, delta: Cube<Cell>, now: Moment) -> u64 {
        let number = self.number();
        self.changes.push(Change { number, partition, what, delta: Arc::new(delta), begun: now, ended: None });
        number
    }

    /// Notes that the statement was answered.
    pub fn end(&mut self, number: u64, now: Moment) {
        if let Some(change) = self.changes.iter_mut().find(|change| change.number == number) {
            change.ended = Some(now);
        }
        self.settle(now);
    }

    pub fn begin_stocking(&mut self, assortment: Assortment, what: String, now: Moment) {
        self.stocked.push_back(Stocked { assortment, what, begun: now, ended: None });
    }

    pub fn end_stocking(&mut self, now: Moment) {
        if let Some(last) = self.stocked.back_mut() {
            last.ended = Some(now);
        }
        self.settle(now);
    }

    /// Notes that a query is about to be sent; until [`History::answered`] nothing that it may see is settled.
    pub fn ask(&mut self, now: Moment) -> u64 {
        let number = self.number();
        self.asking.insert(number, now);
        number
    }

    pub fn answered(&mut self, number: u64) {
        self.asking.remove(&number);
    }

    fn settle(&mut self, now: Moment) {
        let oldest = self.asking.values().copied().min().unwrap_or(now);
        let is_settled = |ended: Option<Moment>| ended.is_some_and(|ended| ended < oldest);
        let (settled, open) = std::mem::take(&mut self.changes).into_iter().partition(|c| is_settled(c.ended));
        self.changes = open;
        let mut settled: Vec<Change> = settled;
        settled.sort_by_key(|change| change.ended);
        for change in settled {
            self.settled.add(&change.delta, 1);
            self.remembered.push_back(change);
        }
        while self.remembered.len() > REMEMBERED {
            self.remembered.pop_front();
        }
        while self.stocked.get(1).is_some_and(|next| is_settled(next.ended)) {
            self.stocked.pop_front();
        }
    }

    /// The states in which the dimension table may have been during a window.
    pub fn assortments(&self, (from, to): Window) -> impl Iterator<Item = &Stocked> {
        let in_force = self.stocked.iter().rposition(|stocked| stocked.ended.is_some_and(|ended| ended < from));
        self.stocked.iter().skip(in_force.unwrap_or(0)).take_while(move |stocked| stocked.begun <= to)
    }
}
