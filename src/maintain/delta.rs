//! Reads the states of parts that ClickHouse may merge away meanwhile, and proves of which of them they are.
//!
//! A query sees the parts of a table as they are at one moment, so of each part that it names it reads all rows or none.
//! That a part was read is proved by one of these:
//! - the number of rows: the query counts them by partition, and they are as many as all its named parts have;
//! - the part itself, which is active after the query as it was before;
//! - its name beside the rows, when the query is asked to tell rows apart by part. Each part then has groups of its own,
//!   which is many times more work, so only parts of which neither of the others holds are read in this way, once more.
//!
//! Parts that were gone before they were read are left for the next look, under their new names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::chunk::{self, Chunk, is_active};
use super::coverage::{Parts, SourceSeen};
use super::observe::Observer;
use super::part::Part;
use super::plan::READ_ROWS_MAX;
use super::rebuild::RebuildError;
use super::sources;
use super::states::{ALL_KEYS, States, text};
use crate::views::catalog::CatalogView;
use crate::wire::Block;

/// Rows read for a new run.
#[derive(Default)]
pub struct Delta {
    pub blocks: Vec<Block>,
    /// The parts whose rows these are, exactly.
    pub parts: Vec<Part>,
}

/// What reading takes.
pub struct Reader<'a> {
    pub states: &'a States,
    pub observer: &'a Observer,
    pub view: &'a CatalogView,
    /// The view's sources by the look that the parts are known from.
    pub seen: &'a [SourceSeen],
}

impl Reader<'_> {
    /// The states of those of some parts that are still there, once it is sure that nothing else has changed since the
    /// look: at most `bytes_max` bytes of them.
    pub async fn read(&self, parts: Vec<Part>, bytes_max: usize) -> Result<Delta, RebuildError> {
        let counts = self.view.view.takes_each_row_once();
        let mut budget = Budget { left: bytes_max };
        let mut queries = Vec::new();
        for chunk in chunk::plan(&parts, READ_ROWS_MAX) {
            let (blocks, counted) = match counts {
                true => self.states.read_counted(&chunk, budget.left).await?,
                false => (self.states.read(Some(&chunk), ALL_KEYS, budget.left).await?, BTreeMap::new()),
            };
            budget.spend(&blocks);
            let complete = |partition: &&str| counted.get(*partition) == Some(&chunk.rows_of(partition));
            let complete = chunk.partitions().into_iter().filter(complete).map(String::from).collect();
            queries.push((chunk, blocks, complete));
        }
        let active = self.standing_parts().await?;
        let mut delta = Delta::default();
        let mut doubtful = Vec::new();
        for (chunk, blocks, complete) in queries {
            doubtful.extend(delta.add_proved(chunk, blocks, &complete, &active));
        }
        if !doubtful.is_empty() {
            self.read_by_part(doubtful, &mut budget, &mut delta).await?;
        }
        Ok(delta)
    }

    async fn read_by_part(&self, parts: Vec<Part>, budget: &mut Budget, delta: &mut Delta) -> Result<(), RebuildError> {
        let mut found = BTreeSet::new();
        for chunk in chunk::plan(&parts, READ_ROWS_MAX) {
            let (blocks, names) = self.states.read_by_part(&chunk, budget.left).await?;
            budget.spend(&blocks);
            delta.blocks.extend(blocks);
            found.extend(names);
        }
        let active = self.standing_parts().await?;
        let proved = |part: &Part| found.contains(&part.name.to_string()) || is_active(part, &active);
        delta.parts.extend(parts.into_iter().filter(proved));
        Ok(())
    }

    async fn standing_parts(&self) -> Result<Arc<Parts>, RebuildError> {
        sources::standing_parts(self.observer, self.view, self.seen).await
    }
}

impl Delta {
    /// Takes what a query brought of those partitions of which it certainly read all parts; returns the parts of the
    /// others. `complete`: partitions of which all rows were counted.
    fn add_proved(
        &mut self,
        chunk: Chunk,
        blocks: Vec<Block>,
        complete: &BTreeSet<String>,
        active: &Parts,
    ) -> Vec<Part> {
        let gone = |part: &&Part| !complete.contains(&part.name.partition) && !is_active(part, active);
        let doubtful: BTreeSet<String> =
            chunk.parts.iter().filter(gone).map(|part| part.name.partition.clone()).collect();
        self.blocks.extend(blocks.into_iter().filter_map(|block| without(block, &doubtful)));
        let (doubtful, proved) = chunk.parts.into_iter().partition(|part| doubtful.contains(&part.name.partition));
        self.parts.extend::<Vec<Part>>(proved);
        doubtful
    }
}

/// Bytes of states that may still be read.
struct Budget {
    left: usize,
}

impl Budget {
    fn spend(&mut self, blocks: &[Block]) {
        self.left = self.left.saturating_sub(blocks.iter().map(Block::byte_size).sum());
    }
}

/// The rows of a block that are of none of `partitions`, which its first column names; `None`: there are none.
fn without(block: Block, partitions: &BTreeSet<String>) -> Option<Block> {
    if partitions.is_empty() {
        return Some(block);
    }
    let names = &block.columns.first()?.data;
    let rows: Vec<u32> =
        (0..block.rows as u32).filter(|row| !partitions.contains(&*text(names, *row as usize))).collect();
    if rows.len() == block.rows {
        return Some(block);
    }
    (!rows.is_empty()).then(|| block.gather(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Column, Data, DataType};

    fn part(name: &str, rows: u64) -> Part {
        Part::parse(name, rows, "", 1).unwrap()
    }

    fn block(partitions: &[&str], states: &[u64]) -> Block {
        let column =
            |name: &str, type_: &str, data| Column { name: name.into(), type_: DataType::parse(type_).unwrap(), data };
        let names: crate::wire::Bytes = partitions.iter().map(|partition| partition.as_bytes()).collect();
        let columns =
            vec![column("_sp", "String", Data::Bytes(names)), column("n", "UInt64", Data::W8(states.to_vec()))];
        Block { columns, rows: states.len() }
    }

    #[test]
    fn partitions_that_may_have_been_missed_are_left_out() {
        let chunk =
            Chunk { parts: vec![part("a_1_1_0", 5), part("b_2_2_0", 5), part("b_3_3_0", 1), part("c_4_4_0", 2)] };
        let complete = BTreeSet::from(["a".to_string()]);
        let active: BTreeMap<String, Vec<Part>> = [
            ("b".to_string(), vec![part("b_2_3_1", 6)]),
            ("c".to_string(), vec![part("c_4_4_0", 2)]),
            ("d".to_string(), vec![]),
        ]
        .into();
        let mut delta = Delta::default();
        let blocks = vec![block(&["a", "b", "c", "b"], &[5, 4, 2, 1]), block(&["b"], &[9]), block(&["c"], &[7])];
        let doubtful = delta.add_proved(chunk, blocks, &complete, &active);
        assert_eq!(doubtful, [part("b_2_2_0", 5), part("b_3_3_0", 1)]);
        assert_eq!(delta.parts, [part("a_1_1_0", 5), part("c_4_4_0", 2)]);
        assert_eq!(delta.blocks, [block(&["a", "c"], &[5, 2]), block(&["c"], &[7])]);
    }
}
