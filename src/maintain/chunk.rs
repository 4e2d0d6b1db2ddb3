//! Cuts the parts of source partitions into chunks, each read by one query. Pure.
//!
//! A chunk names its parts. Parts never come back once they are gone, so when all parts of a chunk are still active after
//! the query, the query has read exactly their rows, whatever was inserted or merged elsewhere meanwhile. Otherwise the
//! chunk is thrown away, and what its parts became is read again.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::coverage::Parts;
use super::part::{Part, PartName};
use crate::sql::render::string_literal;

/// More names would make texts that ClickHouse refuses by default (`max_query_size`, 256 KiB).
const PARTS_MAX: usize = 1_000;

/// Some parts of one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub parts: Vec<Part>,
}

impl Chunk {
    pub fn rows(&self) -> u64 {
        self.parts.iter().map(|part| part.rows).sum()
    }

    /// The partition that all parts are of, if there is only one.
    pub fn partition(&self) -> Option<&str> {
        let first = &self.parts.first()?.name.partition;
        self.parts.iter().all(|part| part.name.partition == *first).then_some(first)
    }

    pub fn partitions(&self) -> BTreeSet<&str> {
        self.parts.iter().map(|part| part.name.partition.as_str()).collect()
    }

    /// Rows of its parts of one partition.
    pub fn rows_of(&self, partition: &str) -> u64 {
        self.parts.iter().filter(|part| part.name.partition == partition).map(|part| part.rows).sum()
    }

    /// The condition on the fact table, which `View::state_select` takes, that selects these parts.
    pub fn predicate(&self) -> String {
        let names: Vec<String> = self.parts.iter().map(|part| string_literal(&part.name.to_string())).collect();
        let partitions: Vec<String> = self.partitions().into_iter().map(string_literal).collect();
        format!("{{fact}}._partition_id IN ({}) AND {{fact}}._part IN ({})", partitions.join(", "), names.join(", "))
    }

    /// Whether every part is among the active ones.
    pub fn is_intact(&self, active: &Parts) -> bool {
        self.parts.iter().all(|part| is_active(part, active))
    }
}

/// Whether a part is, as far as can be told, still among the active ones.
pub fn is_active(part: &Part, active: &Parts) -> bool {
    active.get(&part.name.partition).is_some_and(|active| active.iter().any(|seen| seen.is_still(part)))
}

/// Chunks of about `rows_max` rows that together hold all of `parts`. Large parts come first and by themselves, since
/// merges seldom take them; the small ones, which merges take all the time, are read together and quickly.
pub fn plan(parts: &[Part], rows_max: u64) -> Vec<Chunk> {
    let mut parts: Vec<Part> =
        parts.iter().filter(|part| part.rows > 0 && part.name.patch.is_none()).cloned().collect();
    parts.sort_by(|a, b| b.rows.cmp(&a.rows).then_with(|| a.name.cmp(&b.name)));
    let mut chunks: Vec<(u64, Chunk)> = Vec::new();
    for part in parts {
        let fits = |(rows, chunk): &&mut (u64, Chunk)| *rows + part.rows <= rows_max && chunk.parts.len() < PARTS_MAX;
        match chunks.last_mut().filter(fits) {
            Some((rows, chunk)) => {
                *rows += part.rows;
                chunk.parts.push(part);
            }
            None => chunks.push((part.rows, Chunk { parts: vec![part] })),
        }
    }
    chunks.into_iter().map(|(_, chunk)| chunk).collect()
}

/// Takes stock after some queries: which of the chunks read still count, and which active parts are left to read. Of
/// the latter only those of partitions in `last_blocks` with blocks up to the one given there: what was inserted later is
/// not waited for.
///
/// A chunk of which a part was merged with unread blocks counts no more: the merged part can only be read as a whole.
pub fn settle<T>(
    mut read: Vec<(Chunk, T)>,
    active: &Parts,
    last_blocks: &BTreeMap<String, i64>,
) -> (Vec<(Chunk, T)>, Vec<Part>) {
    let wanted = |part: &&Part| {
        // Patch parts have no rows of their own; reading applies them.
        part.name.patch.is_none()
            && part.rows > 0
            && last_blocks.get(&part.name.partition).is_some_and(|last| part.name.min_block <= *last)
    };
    let active: Vec<&Part> = last_blocks.keys().filter_map(|id| active.get(id)).flatten().filter(wanted).collect();
    loop {
        let identity = |part: &Part| (part.name.clone(), part.written_at);
        let known: HashSet<(PartName, u64)> = read.iter().flat_map(|(chunk, _)| &chunk.parts).map(identity).collect();
        let left: Vec<Part> =
            active.iter().filter(|part| !known.contains(&identity(part))).map(|part| (*part).clone()).collect();
        let mut left_by_partition: HashMap<&str, Vec<&Part>> = HashMap::new();
        for part in &left {
            left_by_partition.entry(&part.name.partition).or_default().push(part);
        }
        let before = read.len();
        read.retain(|(chunk, _)| {
            let clashes = |part: &Part| {
                let left = left_by_partition.get(part.name.partition.as_str());
                left.is_some_and(|left| left.iter().any(|other| part.overlaps(other)))
            };
            !chunk.parts.iter().any(clashes)
        });
        if read.len() == before {
            return (read, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(parts: &[(&str, u64)]) -> Vec<Part> {
        parts.iter().map(|(name, rows)| Part::parse(name, *rows, "", 1).unwrap()).collect()
    }

    fn by_partition(list: &[(&str, u64)]) -> Parts {
        let mut by_partition = Parts::new();
        for part in parts(list) {
            by_partition.entry(part.name.partition.clone()).or_default().push(part);
        }
        by_partition
    }

    fn names(chunks: &[Chunk]) -> Vec<Vec<String>> {
        chunks.iter().map(|chunk| chunk.parts.iter().map(|part| part.name.to_string()).collect()).collect()
    }

    #[test]
    fn large_parts_stand_alone_and_small_ones_together() {
        let parts = parts(&[("a_1_1_0", 5), ("a_2_9_3", 900), ("b_10_10_0", 7), ("a_11_11_0", 0), ("a_12_20_2", 95)]);
        let chunks = plan(&parts, 100);
        assert_eq!(names(&chunks), [vec!["a_2_9_3"], vec!["a_12_20_2"], vec!["b_10_10_0", "a_1_1_0"]]);
        let condition = "{fact}._partition_id IN ('a', 'b') AND {fact}._part IN ('b_10_10_0', 'a_1_1_0')";
        assert_eq!(chunks[2].predicate(), condition);
    }

    fn settled(chunks: Vec<Chunk>, active: &Parts, last_block: i64) -> (Vec<Vec<String>>, Vec<Part>) {
        let last_blocks = active.keys().map(|id| (id.clone(), last_block)).collect();
        let (read, left) = settle(chunks.into_iter().map(|chunk| (chunk, ())).collect(), active, &last_blocks);
        (names(&read.into_iter().map(|(chunk, ())| chunk).collect::<Vec<_>>()), left)
    }

    #[test]
    fn a_merge_during_the_query_breaks_its_chunk_only() {
        let before = parts(&[("a_1_5_1", 500), ("a_6_6_0", 5), ("a_7_7_0", 5), ("b_1_5_1", 400)]);
        let after = by_partition(&[("a_1_5_1", 500), ("a_6_8_1", 15), ("a_9_9_0", 1), ("b_1_5_1", 400)]);
        let (intact, broken): (Vec<Chunk>, Vec<Chunk>) =
            plan(&before, 100).into_iter().partition(|chunk| chunk.is_intact(&after));
        assert_eq!(broken.len(), 1);
        let (done, left) = settled(intact, &after, 7);
        assert_eq!(done, [["a_1_5_1"], ["b_1_5_1"]]);
        assert_eq!(left, parts(&[("a_6_8_1", 15)]), "the part inserted later is not waited for");
    }

    #[test]
    fn a_chunk_merged_with_unread_blocks_is_read_again() {
        let chunks = plan(&parts(&[("a_1_1_0", 60), ("a_2_2_0", 60)]), 100);
        let active = by_partition(&[("a_1_1_0", 60), ("a_2_4_1", 90)]);
        assert_eq!(settled(chunks, &active, 3), (vec![vec!["a_1_1_0".to_string()]], parts(&[("a_2_4_1", 90)])));
    }
}
