//! Cuts the parts of source partitions into chunks, each read by one query. Pure.
//!
//! A chunk names its parts. Parts never come back once they are gone, so when all parts of a chunk are still active after
//! the query, the query has read exactly their rows, whatever was inserted or merged elsewhere meanwhile. Otherwise the
//! chunk is thrown away, and what its parts became is read again.

use super::part::Part;
use crate::sql::render::string_literal;

/// More names would make texts that ClickHouse refuses by default (`max_query_size`, 256 KiB).
const PARTS_MAX: usize = 1_000;

/// Some parts of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub partition: String,
    pub parts: Vec<Part>,
}

impl Chunk {
    pub fn rows(&self) -> u64 {
        self.parts.iter().map(|part| part.rows).sum()
    }

    /// The condition on the fact table, which `View::state_select` takes, that selects these parts.
    pub fn predicate(&self) -> String {
        let names: Vec<String> = self.parts.iter().map(|part| string_literal(&part.name.to_string())).collect();
        let partition = string_literal(&self.partition);
        format!("{{fact}}._partition_id = {partition} AND {{fact}}._part IN ({})", names.join(", "))
    }

    /// Whether every part is among the active ones.
    pub fn is_intact(&self, active: &[Part]) -> bool {
        self.parts.iter().all(|part| active.iter().any(|seen| seen.name == part.name))
    }
}

/// Chunks of about `rows_max` rows that together hold all of `parts`. Large parts come first and by themselves, since
/// merges seldom take them; the small ones, which merges take all the time, are read together and quickly.
pub fn plan(partition: &str, parts: &[Part], rows_max: u64) -> Vec<Chunk> {
    let mut parts: Vec<Part> = parts.iter().filter(|part| part.rows > 0).cloned().collect();
    parts.sort_by(|a, b| b.rows.cmp(&a.rows).then_with(|| a.name.cmp(&b.name)));
    let mut chunks: Vec<Chunk> = Vec::new();
    for part in parts {
        let fits = |chunk: &&mut Chunk| chunk.rows() + part.rows <= rows_max && chunk.parts.len() < PARTS_MAX;
        match chunks.last_mut().filter(fits) {
            Some(chunk) => chunk.parts.push(part),
            None => chunks.push(Chunk { partition: partition.into(), parts: vec![part] }),
        }
    }
    chunks
}

/// Takes stock of a partition after some queries: which of the chunks read still count, and which active parts are left
/// to read. Of the latter only those with blocks up to `last_block`; what was inserted later is not waited for.
///
/// A chunk of which a part was merged with unread blocks counts no more: the merged part can only be read as a whole.
pub fn settle<T>(read: Vec<(Chunk, T)>, active: &[Part], last_block: i64) -> (Vec<(Chunk, T)>, Vec<Part>) {
    let wanted = |part: &&Part| part.rows > 0 && part.name.min_block <= last_block;
    let mut read = read;
    loop {
        let known = |part: &Part| read.iter().flat_map(|(chunk, _)| &chunk.parts).any(|known| known.name == part.name);
        let left: Vec<Part> = active.iter().filter(wanted).filter(|part| !known(part)).cloned().collect();
        let before = read.len();
        read.retain(|(chunk, _)| !chunk.parts.iter().any(|part| left.iter().any(|other| part.overlaps(other))));
        if read.len() == before {
            return (read, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(parts: &[(&str, u64)]) -> Vec<Part> {
        parts.iter().map(|(name, rows)| Part::parse(name, *rows, "").unwrap()).collect()
    }

    fn names(chunks: &[Chunk]) -> Vec<Vec<String>> {
        chunks.iter().map(|chunk| chunk.parts.iter().map(|part| part.name.to_string()).collect()).collect()
    }

    #[test]
    fn large_parts_stand_alone_and_small_ones_together() {
        let parts = parts(&[("a_1_1_0", 5), ("a_2_9_3", 900), ("a_10_10_0", 7), ("a_11_11_0", 0), ("a_12_20_2", 95)]);
        let chunks = plan("a", &parts, 100);
        assert_eq!(names(&chunks), [vec!["a_2_9_3"], vec!["a_12_20_2"], vec!["a_10_10_0", "a_1_1_0"]]);
        assert_eq!(chunks[2].predicate(), "{fact}._partition_id = 'a' AND {fact}._part IN ('a_10_10_0', 'a_1_1_0')");
    }

    fn settled(chunks: Vec<Chunk>, active: &[Part], last_block: i64) -> (Vec<Vec<String>>, Vec<Part>) {
        let (read, left) = settle(chunks.into_iter().map(|chunk| (chunk, ())).collect(), active, last_block);
        (names(&read.into_iter().map(|(chunk, ())| chunk).collect::<Vec<_>>()), left)
    }

    #[test]
    fn a_merge_during_the_query_breaks_its_chunk_only() {
        let before = parts(&[("a_1_5_1", 500), ("a_6_6_0", 5), ("a_7_7_0", 5)]);
        let after = parts(&[("a_1_5_1", 500), ("a_6_8_1", 15), ("a_9_9_0", 1)]);
        let (intact, broken): (Vec<Chunk>, Vec<Chunk>) =
            plan("a", &before, 100).into_iter().partition(|chunk| chunk.is_intact(&after));
        assert_eq!(broken.len(), 1);
        let (done, left) = settled(intact, &after, 7);
        assert_eq!((done, left), (vec![vec!["a_1_5_1".to_string()]], parts(&[("a_6_8_1", 15)])));
    }

    #[test]
    fn a_chunk_merged_with_unread_blocks_is_read_again() {
        let chunks = plan("a", &parts(&[("a_1_1_0", 60), ("a_2_2_0", 60)]), 100);
        let active = parts(&[("a_1_1_0", 60), ("a_2_4_1", 90)]);
        assert_eq!(settled(chunks, &active, 3), (vec![vec!["a_1_1_0".to_string()]], parts(&[("a_2_4_1", 90)])));
    }
}
