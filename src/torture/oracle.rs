//! Judges answers by the history.

use std::collections::BTreeSet;

use super::history::{Change, History, Moment, Window};
use super::shape::{Groups, Shape};

/// Changes under way during one query, in bits of a set.
const OPEN_MAX: usize = 128;

/// States that are compared with one answer at most. Far more than a second's changes allow.
const STATES_MAX: usize = 1 << 18;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The answer is that of one of this many states, which differ in what the query sees.
    Right {
        states: usize,
    },
    Wrong,
    /// Too many changes were under way to tell.
    Undecided,
}

/// What there is to see about a wrong answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    pub states: usize,
    /// Some of the answers that would have been right.
    pub allowed: Vec<String>,
    /// The changes that the query may or may not have seen, and the last before them.
    pub history: Vec<String>,
    /// What of the past would explain the answer.
    pub explanations: Vec<String>,
}

/// What a query may see, reduced to what its answer depends on; one for each state that the dimension table may have been
/// in.
pub struct Witnesses {
    window: Window,
    witnesses: Vec<Witness>,
}

struct Witness {
    /// After all that has surely taken effect before the query arrived.
    settled: Groups,
    open: Vec<Open>,
}

/// A change that may have taken effect during the query, or is seen in part of the states for another reason.
struct Open {
    partition: usize,
    begun: Moment,
    ended: Option<Moment>,
    groups: Groups,
}

impl Witnesses {
    /// Of a query that arrived at the beginning of `window` and ended at its end, which is now.
    pub fn of(history: &History, shape: &Shape, window: Window) -> Self {
        let mut witnesses = Vec::new();
        for stocked in history.assortments(window) {
            let mut settled = shape.project(&history.settled, &stocked.assortment);
            let mut open = Vec::new();
            for change in history.changes.iter().filter(|change| change.begun <= window.1) {
                let groups = shape.project(&change.delta, &stocked.assortment);
                if change.ended.is_some_and(|ended| ended < window.0) {
                    settled.add(&groups, 1);
                } else if groups != Groups::default() {
                    open.push(Open { partition: change.partition, begun: change.begun, ended: change.ended, groups });
                }
            }
            witnesses.push(Witness { settled, open });
            if !shape.joins() {
                break;
            }
        }
        Self { window, witnesses }
    }

    pub fn judge(&self, shape: &Shape, answer: &str) -> Verdict {
        let mut all = Vec::new();
        for witness in &self.witnesses {
            let Some(sets) = at_one_moment(&witness.open, self.window) else { return Verdict::Undecided };
            all.push((witness, sets));
        }
        let states = all.iter().map(|(_, sets)| sets.len()).sum();
        if all.iter().any(|(witness, sets)| witness.gives(shape, answer, sets)) {
            return Verdict::Right { states };
        }
        Verdict::Wrong
    }
}

impl Witness {
    fn state(&self, set: u128) -> Groups {
        let mut groups = self.settled.clone();
        for (_, open) in self.open.iter().enumerate().filter(|(at, _)| set & (1 << at) != 0) {
            groups.add(&open.groups, 1);
        }
        groups
    }

    fn gives(&self, shape: &Shape, answer: &str, sets: &BTreeSet<u128>) -> bool {
        sets.iter().any(|set| shape.answer(&self.state(*set)) == answer)
    }
}

/// All sets of changes that may be just those in effect at one moment of the window: at a moment `t`, a change that
/// ended before `t` is in effect, one that began after `t` is not, and any of the others may be. Only moments at which a
/// change begins or ends need be looked at: the sets of any other moment are among those of the one before it.
fn at_one_moment(open: &[Open], (from, to): Window) -> Option<BTreeSet<u128>> {
    if open.len() > OPEN_MAX {
        return None;
    }
    let bits = |holds: &dyn Fn(&Open) -> bool| -> u128 {
        open.iter().enumerate().filter(|(_, change)| holds(change)).map(|(at, _)| 1 << at).sum()
    };
    let ends = open.iter().filter_map(|change| change.ended);
    let moments: BTreeSet<Moment> =
        open.iter().map(|change| change.begun).chain(ends).chain([from]).filter(|t| (from..=to).contains(t)).collect();
    let mut sets = BTreeSet::new();
    for moment in moments {
        let must = bits(&|change| change.ended.is_some_and(|ended| ended < moment));
        let free = bits(&|change| change.begun <= moment) & !must;
        if 1_u128.checked_shl(free.count_ones()).is_none_or(|subsets| subsets > STATES_MAX as u128) {
            return None;
        }
        let mut subset = free;
        loop {
            sets.insert(must | subset);
            if subset == 0 {
                break;
            }
            subset = (subset - 1) & free;
        }
        if sets.len() > STATES_MAX {
            return None;
        }
    }
    Some(sets)
}

/// As [`at_one_moment`] for each partition by itself, in all combinations.
fn at_many_moments(open: &[Open], window: Window) -> Option<BTreeSet<u128>> {
    let partitions: BTreeSet<usize> = open.iter().map(|change| change.partition).collect();
    let mut combined = BTreeSet::from([0]);
    for partition in partitions {
        let places: Vec<usize> = (0..open.len()).filter(|at| open[*at].partition == partition).collect();
        let own: Vec<Open> = places.iter().map(|at| open[*at].shallow()).collect();
        let sets = at_one_moment(&own, window)?;
        if combined.len() * sets.len() > STATES_MAX {
            return None;
        }
        let spread = |set: u128| -> u128 {
            places.iter().enumerate().filter(|(at, _)| set & (1 << at) != 0).map(|(_, place)| 1 << place).sum()
        };
        let sets: Vec<u128> = sets.into_iter().map(spread).collect();
        combined = combined.iter().flat_map(|known| sets.iter().map(move |set| known | set)).collect();
    }
    Some(combined)
}

impl Open {
    /// Times alone.
    fn shallow(&self) -> Self {
        Self { partition: self.partition, begun: self.begun, ended: self.ended, groups: Groups::default() }
    }
}

/// Answers and changes that are shown.
const SHOWN_ALLOWED: usize = 4;
const SHOWN_CHANGES: usize = 12;

/// Right states from which explanations are tried.
const EXPLAINED_STATES: usize = 512;

/// What there is to say about a wrong answer.
pub fn evidence(history: &History, shape: &Shape, answer: &str, window: Window, witnesses: &Witnesses) -> Evidence {
    let mut allowed = Vec::new();
    let mut states = 0;
    for witness in &witnesses.witnesses {
        let sets = at_one_moment(&witness.open, window).unwrap_or_default();
        states += sets.len();
        allowed.extend(sets.iter().take(SHOWN_ALLOWED).map(|set| shape.answer(&witness.state(*set))));
    }
    allowed.dedup();
    allowed.truncate(SHOWN_ALLOWED);
    let mut shown: Vec<String> = Vec::new();
    for stocked in history.assortments(window) {
        shown.push(line(window.0, "dimension", &stocked.what, stocked.begun, stocked.ended));
    }
    let earlier = history.remembered.iter().rev().take(SHOWN_CHANGES).rev();
    for change in earlier.chain(&history.changes) {
        shown.push(told(window.0, change));
    }
    let mut explanations = explanations(history, shape, answer, window, witnesses);
    let is_skewed = witnesses
        .witnesses
        .iter()
        .any(|witness| at_many_moments(&witness.open, window).is_some_and(|sets| witness.gives(shape, answer, &sets)));
    if is_skewed {
        explanations.push("made of partitions as of different moments".into());
    }
    Evidence { states, allowed, history: shown, explanations }
}

/// A change with the rows and the amount that it adds.
fn told(arrival: Moment, change: &Change) -> String {
    let rows: i64 = change.delta.0.values().map(|sums| sums.rows).sum();
    let amount: i64 = change.delta.0.values().map(|sums| sums.amount).sum();
    let what = format!("{} ({rows:+} rows, {amount:+})", change.what);
    line(arrival, &format!("#{}", change.number), &what, change.begun, change.ended)
}

fn line(arrival: Moment, number: &str, what: &str, begun: Moment, ended: Option<Moment>) -> String {
    let ms = |moment: Moment| (moment as f64 - arrival as f64) / 1000.0;
    let ended = ended.map_or("under way".into(), |ended| format!("{:+.1} ms", ms(ended)));
    format!("{number} {what}: {:+.1} ms .. {ended}", ms(begun))
}

/// Looks for a simple fault that makes the answer of a right state: all of it or one partition is older, or one change is
/// missing or there twice.
fn explanations(history: &History, shape: &Shape, answer: &str, window: Window, witnesses: &Witnesses) -> Vec<String> {
    let mut found = BTreeSet::new();
    for (witness, stocked) in witnesses.witnesses.iter().zip(history.assortments(window)) {
        let project = |change: &Change| shape.project(&change.delta, &stocked.assortment);
        let before = |change: &&Change| change.ended.is_some_and(|ended| ended < window.0);
        let past: Vec<&Change> = history.remembered.iter().chain(history.changes.iter().filter(before)).collect();
        let deltas: Vec<Groups> = past.iter().map(|change| project(change)).collect();
        let told = |change: &Change| told(window.0, change);
        let partitions: BTreeSet<usize> = past.iter().map(|change| change.partition).collect();
        for set in at_one_moment(&witness.open, window).unwrap_or_default().into_iter().take(EXPLAINED_STATES) {
            let right = witness.state(set);
            let gives = |groups: &Groups| shape.answer(groups) == answer;
            let mut older = right.clone();
            for (change, delta) in past.iter().zip(&deltas).rev() {
                older.add(delta, -1);
                if gives(&older) {
                    found.insert(format!("a right one before {}", told(change)));
                }
            }
            for partition in &partitions {
                let mut older = right.clone();
                let own = past.iter().zip(&deltas).rev().filter(|(change, _)| change.partition == *partition);
                for (change, delta) in own {
                    older.add(delta, -1);
                    if gives(&older) {
                        found.insert(format!("a right one but for its partition before {}", told(change)));
                    }
                }
            }
            let open = history.changes.iter().filter(|change| !before(change)).map(|change| (change, project(change)));
            let all: Vec<(&Change, Groups)> = past.iter().copied().zip(deltas.clone()).chain(open).collect();
            for (change, delta) in &all {
                for (times, how) in [(-1, "without"), (1, "with once more")] {
                    let mut other = right.clone();
                    other.add(delta, times);
                    if gives(&other) && !gives(&right) {
                        found.insert(format!("a right one {how} {}", told(change)));
                    }
                }
            }
        }
    }
    found.into_iter().take(SHOWN_CHANGES).collect()
}

#[cfg(test)]
mod tests {
    use super::super::cube::{Cell, Cube, Day, PRODUCTS, Sale};
    use super::super::random::Random;
    use super::super::shape::SHAPES;
    use super::*;

    fn rows(partition: usize, seed: u64) -> Cube<Cell> {
        let mut random = Random::new(seed);
        let rows: Vec<Sale> = (0..20)
            .map(|_| Sale {
                cell: Cell {
                    day: Day { month: partition as u8, day: random.below(4) as u8 },
                    region: random.below(5) as u8,
                    product: random.below(PRODUCTS) as u8,
                },
                amount: random.between(-1000, 1000),
                price: random.below(100) as u32,
            })
            .collect();
        let mut cube = Cube::default();
        cube.add_rows(&rows, 1);
        cube
    }

    /// Inserts by (partition, begun, ended); none is settled, as a query that arrived at 0 is under way.
    fn history(inserts: &[(usize, Moment, Option<Moment>)]) -> History {
        let mut history = History::new([Some(1); PRODUCTS]);
        history.ask(0);
        history.settled = rows(0, 99);
        for (at, (partition, begun, ended)) in inserts.iter().enumerate() {
            let number = history.begin(*partition, format!("insert {at}"), rows(*partition, at as u64), *begun);
            if let Some(ended) = ended {
                history.end(number, *ended);
            }
        }
        history
    }

    /// The answer after the inserts at these places.
    fn after(history: &History, shape: &Shape, places: &[usize]) -> String {
        let mut rows = history.settled.clone();
        places.iter().for_each(|at| rows.add(&history.changes[*at].delta, 1));
        shape.answer(&shape.project(&rows, &[Some(1); PRODUCTS]))
    }

    fn judge(history: &History, shape: &Shape, answer: &str, window: Window) -> Verdict {
        Witnesses::of(history, shape, window).judge(shape, answer)
    }

    fn explained(history: &History, shape: &Shape, answer: &str, window: Window) -> Evidence {
        assert_eq!(judge(history, shape, answer, window), Verdict::Wrong);
        evidence(history, shape, answer, window, &Witnesses::of(history, shape, window))
    }

    fn verdict(history: &History, window: Window, places: &[usize]) -> &'static str {
        let answer = after(history, &Shape::GrandTotal, places);
        match judge(history, &Shape::GrandTotal, &answer, window) {
            Verdict::Right { .. } => "right",
            Verdict::Wrong => "wrong",
            Verdict::Undecided => "undecided",
        }
    }

    #[test]
    fn an_answer_must_be_a_state_between_arrival_and_end() {
        let history = history(&[(0, 10, Some(20)), (1, 30, Some(60)), (2, 40, Some(50)), (3, 90, None)]);
        // 0 was there before, 1 and 2 may or may not, 3 came later.
        for places in [&[0][..], &[0, 1], &[0, 2], &[0, 1, 2]] {
            assert_eq!(verdict(&history, (35, 80), places), "right", "{places:?}");
        }
        for places in [&[][..], &[1], &[1, 2], &[0, 3], &[0, 1, 2, 3]] {
            assert_eq!(verdict(&history, (35, 80), places), "wrong", "{places:?}");
        }
        // After both have ended, both are there; before they begin, neither.
        assert_eq!(verdict(&history, (61, 80), &[0, 1, 2]), "right");
        assert_eq!(verdict(&history, (61, 80), &[0, 2]), "wrong");
        assert_eq!(verdict(&history, (21, 29), &[0]), "right");
        assert_eq!(verdict(&history, (21, 29), &[0, 1]), "wrong");
        // One that is not answered yet may be seen as soon as it was sent.
        assert_eq!(verdict(&history, (70, 95), &[0, 1, 2, 3]), "right");
        assert_eq!(verdict(&history, (70, 95), &[0, 1, 3]), "wrong");
    }

    #[test]
    fn a_later_change_is_not_seen_without_an_earlier_one() {
        let history = history(&[(0, 10, Some(20)), (1, 30, Some(40))]);
        assert_eq!(verdict(&history, (5, 50), &[0]), "right");
        assert_eq!(verdict(&history, (5, 50), &[0, 1]), "right");
        assert_eq!(verdict(&history, (5, 50), &[1]), "wrong");
        let explanations = |history: &History| {
            let answer = after(history, &Shape::GrandTotal, &[1]);
            explained(history, &Shape::GrandTotal, &answer, (5, 50)).explanations.pop()
        };
        assert_eq!(explanations(&history).unwrap(), "made of partitions as of different moments");
        let same_partition = self::history(&[(1, 10, Some(20)), (1, 30, Some(40))]);
        assert!(!explanations(&same_partition).unwrap_or_default().contains("different moments"));
    }

    #[test]
    fn every_falsified_answer_is_caught_and_explained() {
        let history = history(&[(0, 10, Some(20)), (1, 30, Some(40)), (2, 50, None)]);
        // One state is right, so nothing else may be.
        let window = (45, 49);
        let mut random = Random::new(1);
        for number in 0..SHAPES {
            let shape = Shape::by_chance(number, &mut random);
            let right = after(&history, &shape, &[0, 1]);
            assert!(matches!(judge(&history, &shape, &right, window), Verdict::Right { states: 1 }), "{right}");
            // Another digit anywhere, a row less, a row twice, no row.
            let lines: Vec<&str> = right.lines().collect();
            let mut wrong = vec![lines[..2].join("\n") + "\n", lines[..lines.len() - 1].join("\n") + "\n"];
            wrong.push(format!("{right}{}\n", lines[lines.len() - 1]));
            for (at, digit) in right.char_indices().filter(|(_, c)| c.is_ascii_digit()) {
                let other = (digit as u8 - b'0' + 1) % 10;
                wrong.push(format!("{}{other}{}", &right[..at], &right[at + 1..]));
            }
            for answer in wrong.iter().filter(|answer| **answer != right) {
                assert_eq!(judge(&history, &shape, answer, window), Verdict::Wrong, "{}: {answer}", shape.name());
            }
        }
        let stale = after(&history, &Shape::ByRegion, &[]);
        let evidence = explained(&history, &Shape::ByRegion, &stale, (35, 60));
        assert_eq!((evidence.states, evidence.allowed.len()), (3, 3));
        assert!(evidence.explanations.iter().any(|text| text.starts_with("a right one without #2 insert 0 (+20 rows")));
    }

    #[test]
    fn the_dimension_table_may_change_during_a_query() {
        let mut history = History::new([Some(1); PRODUCTS]);
        history.ask(0);
        history.settled = rows(0, 99);
        let mut other = [Some(1); PRODUCTS];
        other[3] = Some(2);
        history.begin_stocking(other, "product 3".into(), 40);
        history.end_stocking(50);
        let shape = Shape::Star { from_month: 0 };
        let answer = |assortment| shape.answer(&shape.project(&history.settled, assortment));
        let (before, after) = (answer(&[Some(1); PRODUCTS]), answer(&other));
        assert_ne!(before, after);
        let is_right = |answer: &str, window| matches!(judge(&history, &shape, answer, window), Verdict::Right { .. });
        assert!(is_right(&before, (10, 20)) && !is_right(&after, (10, 20)));
        assert!(is_right(&before, (10, 45)) && is_right(&after, (10, 45)));
        assert!(!is_right(&before, (51, 60)) && is_right(&after, (51, 60)));
    }

    #[test]
    fn what_is_settled_stays_in_force_and_explains_wrong_answers() {
        let mut history = History::new([Some(1); PRODUCTS]);
        for at in 0..3 {
            let number = history.begin(at, format!("insert {at}"), rows(at, at as u64), 10 * at as u64);
            history.end(number, 10 * at as u64 + 5);
        }
        let query = history.ask(100);
        let number = history.begin(4, "delete".into(), rows(4, 7), 110);
        history.end(number, 120);
        assert_eq!((history.changes.len(), history.remembered.len()), (1, 3));
        let mut all = Cube::default();
        (0..3).for_each(|at| all.add(&rows(at, at as u64), 1));
        assert_eq!(history.settled, all);
        all.add(&rows(1, 1), -1);
        let shape = Shape::GrandTotal;
        let lost = shape.answer(&shape.project(&all, &[None; PRODUCTS]));
        let evidence = explained(&history, &shape, &lost, (100, 130));
        let explained: Vec<&str> = evidence.explanations.iter().filter_map(|text| text.split(" (").next()).collect();
        assert_eq!(
            explained,
            ["a right one but for its partition before #2 insert 1", "a right one without #2 insert 1"]
        );
        history.answered(query);
        let number = history.begin(4, "nothing".into(), Cube::default(), 140);
        history.end(number, 150);
        assert_eq!(history.remembered.len(), 4);
    }
}
