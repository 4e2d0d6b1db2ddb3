//! What came out.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;

use serde::Serialize;

use super::history::Window;
use super::oracle::{Evidence, Verdict};
use super::readers::Way;
use super::shape::Shape;
use crate::maintain::lock;

/// Faults that are kept in full.
const FAULTS_KEPT: usize = 10;

/// Reasons for raw answers that are shown, the most frequent ones.
const REASONS_SHOWN: usize = 8;

/// A wrong answer, or none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// `wrong` or `failed`
    pub kind: &'static str,
    pub query: String,
    pub sidecar: String,
    pub decision: String,
    pub answer: String,
    /// What ClickHouse was sent for it, as far as it logs that.
    pub sent: Vec<String>,
    /// How long the query took.
    pub milliseconds: u64,
    /// How many states would have been right.
    pub states: usize,
    /// Some of the right answers.
    pub allowed: Vec<String>,
    /// Changes, with their times from the query's arrival on.
    pub history: Vec<String>,
    pub explanations: Vec<String>,
}

impl Fault {
    pub fn failed(shape: &Shape, sidecar: &str, message: String) -> Self {
        Self {
            kind: "failed",
            query: shape.sql(),
            sidecar: sidecar.into(),
            decision: String::new(),
            answer: message,
            sent: Vec::new(),
            milliseconds: 0,
            states: 0,
            allowed: Vec::new(),
            history: Vec::new(),
            explanations: Vec::new(),
        }
    }

    pub fn wrong(
        shape: &Shape,
        sidecar: usize,
        decision: &str,
        answer: &str,
        window: Window,
        evidence: Evidence,
    ) -> Self {
        Self {
            kind: "wrong",
            query: shape.sql(),
            sidecar: format!("sidecar {sidecar}"),
            decision: decision.into(),
            answer: answer.into(),
            sent: Vec::new(),
            milliseconds: (window.1 - window.0) / 1000,
            states: evidence.states,
            allowed: evidence.allowed,
            history: evidence.history,
            explanations: evidence.explanations,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({}, {} ms, {}): {}", self.kind, self.sidecar, self.milliseconds, self.decision, self.query)?;
        writeln!(f, "answer:\n{}", indented(&self.answer))?;
        self.sent.iter().try_for_each(|sent| writeln!(f, "sent {sent}"))?;
        for allowed in &self.allowed {
            writeln!(f, "right would be (one of {}):\n{}", self.states, indented(allowed))?;
        }
        for explanation in &self.explanations {
            writeln!(f, "it is {explanation}")?;
        }
        writeln!(f, "changes, by milliseconds from the query's arrival:")?;
        self.history.iter().try_for_each(|line| writeln!(f, "    {line}"))
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
}

/// Collects what the readers see.
#[derive(Debug, Default)]
pub struct Seen(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    shapes: BTreeMap<&'static str, ShapeCount>,
    raw: u64,
    view: u64,
    hybrid: u64,
    wrong: u64,
    failed: u64,
    retried: u64,
    undecided: u64,
    amid_changes: u64,
    reasons: BTreeMap<String, u64>,
    /// Numbers of states that were allowed -> answers.
    states: BTreeMap<usize, u64>,
    milliseconds: Vec<u32>,
    faults: Vec<Fault>,
}

/// Of one shape of query.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ShapeCount {
    pub answers: u64,
    pub accelerated: u64,
}

impl Seen {
    pub fn answer(&self, shape: &Shape, way: Way, decision: &str, verdict: Verdict, window: Window) {
        let mut counts = lock(&self.0);
        let of_shape = counts.shapes.entry(shape.name()).or_default();
        of_shape.answers += 1;
        of_shape.accelerated += u64::from(way != Way::Raw);
        match way {
            Way::Raw => {
                counts.raw += 1;
                *counts.reasons.entry(kind_of_reason(decision)).or_default() += 1;
            }
            Way::View => counts.view += 1,
            Way::Hybrid => counts.hybrid += 1,
        }
        let amid_changes = matches!(verdict, Verdict::Right { states } if states > 1);
        counts.amid_changes += u64::from(way != Way::Raw && amid_changes);
        match verdict {
            Verdict::Right { states } => *counts.states.entry(states).or_default() += 1,
            Verdict::Wrong => counts.wrong += 1,
            Verdict::Undecided => counts.undecided += 1,
        }
        counts.milliseconds.push(((window.1 - window.0) / 1000) as u32);
    }

    pub fn fault(&self, fault: Fault) {
        let mut counts = lock(&self.0);
        counts.failed += u64::from(fault.kind == "failed");
        if counts.faults.len() < FAULTS_KEPT {
            counts.faults.push(fault);
        }
    }

    pub fn retried(&self) {
        lock(&self.0).retried += 1;
    }

    /// Answers, accelerated ones, wrong and failed ones so far.
    pub fn so_far(&self) -> (u64, u64, u64) {
        let counts = lock(&self.0);
        (counts.raw + counts.view + counts.hybrid, counts.view + counts.hybrid, counts.wrong + counts.failed)
    }
}

/// A reason without names and numbers of parts, partitions and runs.
fn kind_of_reason(decision: &str) -> String {
    let reason = decision.strip_prefix("raw; reason=").unwrap_or("no decision");
    let plain = |word: &str| !word.chars().any(|c| c.is_ascii_digit());
    reason.split(' ').map(|word| if plain(word) { word } else { ".." }).collect::<Vec<_>>().join(" ")
}

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub seed: u64,
    pub seconds: u64,
    /// Whether the fact table kept block numbers.
    pub block_numbers: bool,
    /// Answers that were judged.
    pub answers: u64,
    /// Those that came from views, in full or in part.
    pub accelerated: u64,
    /// Those that came from views in part.
    pub hybrid: u64,
    /// Accelerated ones during which something changed that the query asked for.
    pub accelerated_amid_changes: u64,
    pub wrong: u64,
    /// Queries that got an error from a sidecar that was not killed meanwhile.
    pub failed: u64,
    pub kills: u64,
    /// Queries that were asked anew because their sidecar was killed.
    pub retried: u64,
    /// Answers during which too many changes were under way to tell.
    pub undecided: u64,
    /// States that one answer was compared with: those that it may show.
    pub states_median: usize,
    pub states_max: usize,
    pub median_ms: u32,
    /// Until every shape was answered from views once nothing changed any more; `None`: that did not happen.
    pub caught_up_seconds: Option<f64>,
    /// The last decisions about those that were not.
    pub lagging: Vec<String>,
    pub shapes: BTreeMap<&'static str, ShapeCount>,
    pub changes: BTreeMap<&'static str, u64>,
    /// Why answers were raw, most frequent first.
    pub raw_reasons: Vec<(String, u64)>,
    pub faults: Vec<Fault>,
}

impl Report {
    pub fn new(
        seed: u64,
        seconds: u64,
        block_numbers: bool,
        seen: &Seen,
        changes: BTreeMap<&'static str, u64>,
    ) -> Self {
        let counts = lock(&seen.0);
        let mut raw_reasons: Vec<(String, u64)> = counts.reasons.clone().into_iter().collect();
        raw_reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        raw_reasons.truncate(REASONS_SHOWN);
        let mut milliseconds = counts.milliseconds.clone();
        milliseconds.sort_unstable();
        Self {
            seed,
            seconds,
            block_numbers,
            answers: counts.raw + counts.view + counts.hybrid,
            accelerated: counts.view + counts.hybrid,
            hybrid: counts.hybrid,
            accelerated_amid_changes: counts.amid_changes,
            wrong: counts.wrong,
            failed: counts.failed,
            kills: changes.get("kills").copied().unwrap_or(0),
            retried: counts.retried,
            undecided: counts.undecided,
            states_median: median(&counts.states),
            states_max: counts.states.last_key_value().map_or(0, |(states, _)| *states),
            median_ms: milliseconds.get(milliseconds.len() / 2).copied().unwrap_or(0),
            caught_up_seconds: None,
            lagging: Vec::new(),
            shapes: counts.shapes.clone(),
            changes,
            raw_reasons,
            faults: counts.faults.clone(),
        }
    }

    /// Adds what went wrong after the changes had ended, and when the views had caught up.
    pub fn close(&mut self, closing: &Seen, caught_up: Result<f64, Vec<String>>) {
        let counts = lock(&closing.0);
        self.wrong += counts.wrong;
        self.failed += counts.failed;
        self.faults.extend(counts.faults.iter().cloned());
        match caught_up {
            Ok(seconds) => self.caught_up_seconds = Some(seconds),
            Err(decisions) => self.lagging = decisions,
        }
    }

    /// What went wrong, in a sentence.
    pub fn failure(&self) -> Option<String> {
        (self.wrong + self.failed > 0).then(|| {
            format!(
                "{} wrong answers and {} failed queries of {}; seed {}",
                self.wrong, self.failed, self.answers, self.seed
            )
        })
    }
}

fn median(states: &BTreeMap<usize, u64>) -> usize {
    let middle = states.values().sum::<u64>() / 2;
    let mut before = 0;
    for (states, answers) in states {
        before += answers;
        if before > middle {
            return *states;
        }
    }
    0
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fault in &self.faults {
            writeln!(f, "{fault}")?;
        }
        let numbers = if self.block_numbers { "with" } else { "without" };
        writeln!(f, "{} s of torture {numbers} block numbers, seed {}\n", self.seconds, self.seed)?;
        writeln!(
            f,
            "{:>9} answers, median {} ms, each compared with the states it may show: median {}, at most {}",
            self.answers, self.median_ms, self.states_median, self.states_max
        )?;
        writeln!(
            f,
            "{:>9} accelerated, {} of them hybrid, {} amid changes that they might show",
            self.accelerated, self.hybrid, self.accelerated_amid_changes
        )?;
        writeln!(f, "{:>9} wrong", self.wrong)?;
        writeln!(f, "{:>9} failed", self.failed)?;
        writeln!(f, "{:>9} kills of sidecars, {} queries asked anew", self.kills, self.retried)?;
        writeln!(f, "{:>9} undecided", self.undecided)?;
        match self.caught_up_seconds {
            Some(seconds) => writeln!(f, "{seconds:>9.1} s until all came from views once nothing changed")?,
            None => {
                writeln!(f, "          not all came from views once nothing changed:")?;
                self.lagging.iter().try_for_each(|decision| writeln!(f, "            {decision}"))?;
            }
        }
        writeln!(f, "\nshape                  answers  accelerated")?;
        for (name, count) in &self.shapes {
            writeln!(f, "{name:<20} {:>9} {:>12}", count.answers, count.accelerated)?;
        }
        writeln!(f, "\nchanges")?;
        self.changes.iter().try_for_each(|(name, count)| writeln!(f, "{name:<20} {count:>9}"))?;
        writeln!(f, "\nraw because")?;
        self.raw_reasons.iter().try_for_each(|(reason, count)| writeln!(f, "{count:>9} {reason}"))
    }
}
