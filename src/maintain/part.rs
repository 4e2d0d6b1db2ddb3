//! Names of MergeTree data parts, which say all that coverage needs to know.
//!
//! ```text
//! 2020_1_7_1_10    partition 2020, blocks 1 to 7, merged once, mutation 10 applied
//! 2020_9_9_0       one inserted block; no mutation has touched it
//! patch-<32 hex digits>-2020_12_12_0_11    rows that a lightweight UPDATE lays over partition 2020
//! ```
//!
//! Block numbers and mutation versions come from one counter per table (MergeTree) or per partition (Replicated), so a
//! part inserted after mutation `M` has block numbers above `M`. Seen in 18.16 to 26.9; written by
//! `MergeTreePartInfo::getPartNameV1` in ClickHouse.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A part's name, taken apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartName {
    /// The partition id; for a patch part that of the partition it lies over.
    pub partition: String,
    pub min_block: i64,
    pub max_block: i64,
    /// How many merges deep.
    pub level: u32,
    /// The newest mutation applied to the part; 0: none.
    pub mutation: i64,
    /// The hash in the name of a patch part (lightweight update); `None` for parts with rows of their own.
    pub patch: Option<String>,
}

/// Why a name was not understood, such as `20200101_20200131_1_1_0` of tables made by the syntax of before 2017.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no part name of the form partition_min_max_level[_mutation]")]
pub struct PartNameError(pub String);

const PATCH_PREFIX: &str = "patch-";

impl FromStr for PartName {
    type Err = PartNameError;

    fn from_str(name: &str) -> Result<Self, PartNameError> {
        let malformed = || PartNameError(name.to_string());
        let fields: Vec<&str> = name.split('_').collect();
        let [partition, min, max, level, mutation @ ..] = &fields[..] else { return Err(malformed()) };
        let mutation = match mutation {
            [] => 0,
            [mutation] => mutation.parse().map_err(|_| malformed())?,
            _ => return Err(malformed()),
        };
        let (patch, partition) = match partition.strip_prefix(PATCH_PREFIX) {
            Some(rest) => {
                let (hash, partition) = rest.split_once('-').ok_or_else(malformed)?;
                (Some(hash.to_string()), partition)
            }
            None => (None, *partition),
        };
        let part = PartName {
            partition: partition.to_string(),
            min_block: min.parse().map_err(|_| malformed())?,
            max_block: max.parse().map_err(|_| malformed())?,
            level: level.parse().map_err(|_| malformed())?,
            mutation,
            patch,
        };
        if part.partition.is_empty() || part.min_block > part.max_block || part.mutation < 0 {
            return Err(malformed());
        }
        Ok(part)
    }
}

impl fmt::Display for PartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(hash) = &self.patch {
            write!(f, "{PATCH_PREFIX}{hash}-")?;
        }
        write!(f, "{}_{}_{}_{}", self.partition, self.min_block, self.max_block, self.level)?;
        if self.mutation != 0 {
            write!(f, "_{}", self.mutation)?;
        }
        Ok(())
    }
}

/// An active part as one look at `system.parts` shows it, and as the manifest keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "StoredPart", try_from = "StoredPart")]
pub struct Part {
    pub name: PartName,
    /// Rows in its files; those hidden by a lightweight DELETE count.
    pub rows: u64,
    /// `hash_of_all_files`: equal hashes, equal contents. Empty where the look did not ask for it.
    pub hash: String,
    /// When its files were written (`modification_time`), unix seconds by the server's clock.
    pub written_at: u64,
}

impl Part {
    pub fn parse(name: &str, rows: u64, hash: &str, written_at: u64) -> Result<Self, PartNameError> {
        Ok(Self { name: name.parse()?, rows, hash: hash.into(), written_at })
    }

    /// Whether it bears the other's name and is, as far as time can tell, the same part: where block numbers were given
    /// out anew, another part may have got the name.
    pub fn is_still(&self, other: &Part) -> bool {
        self.name == other.name && self.written_at == other.written_at
    }

    /// Whether this part's blocks lie within those of `other`.
    pub fn lies_in(&self, other: &Part) -> bool {
        other.name.min_block <= self.name.min_block && self.name.max_block <= other.name.max_block
    }

    /// Whether the two parts have a block in common.
    pub fn overlaps(&self, other: &Part) -> bool {
        self.name.min_block <= other.name.max_block && other.name.min_block <= self.name.max_block
    }
}

/// Leaves out the patch parts that lie over nothing any more. A patch changes the rows of parts of an older version; when a
/// merge or mutation has taken it into all of these, it stays for a minute and does nothing.
pub fn drop_spent_patches(partition: &mut Vec<Part>) {
    let version = |name: &PartName| if name.mutation == 0 { name.min_block } else { name.mutation };
    let own = partition.iter().filter(|part| part.name.patch.is_none() && part.rows > 0);
    let oldest = own.map(|part| version(&part.name)).min();
    partition.retain(|part| part.name.patch.is_none() || oldest.is_some_and(|oldest| oldest < part.name.mutation));
}

/// `["2020_1_7_1_10", 6, "<hash>", 1735689600]`: a part in the manifest's JSON. Without a time it is known by its hash
/// alone.
#[derive(Serialize, Deserialize)]
struct StoredPart(String, u64, String, #[serde(default)] u64);

impl From<Part> for StoredPart {
    fn from(part: Part) -> Self {
        StoredPart(part.name.to_string(), part.rows, part.hash, part.written_at)
    }
}

impl TryFrom<StoredPart> for Part {
    type Error = PartNameError;

    fn try_from(StoredPart(name, rows, hash, written_at): StoredPart) -> Result<Self, PartNameError> {
        Part::parse(&name, rows, &hash, written_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_they_were() {
        for name in
            ["all_1_1_0", "202001_1_7_1_10", "2020-3_4_4_0", "patch-0aacb9b447b0a958b1ebc5931e13d6f9-2022_12_12_0_11"]
        {
            assert_eq!(name.parse::<PartName>().map(|part| part.to_string()), Ok(name.to_string()));
        }
        let patch: PartName = "patch-0aac-2022_12_12_0_11".parse().unwrap();
        assert_eq!((patch.partition.as_str(), patch.mutation, patch.patch.as_deref()), ("2022", 11, Some("0aac")));
    }

    #[test]
    fn a_patch_is_spent_when_every_part_has_its_version_or_came_later() {
        let left = |names: &[&str]| {
            let mut parts: Vec<Part> = names.iter().map(|name| Part::parse(name, 5, "", 1).unwrap()).collect();
            drop_spent_patches(&mut parts);
            parts.len()
        };
        assert_eq!(left(&["2021_2_2_1_4", "2021_5_5_0", "patch-0aac-2021_3_3_0_4"]), 2);
        assert_eq!(left(&["2021_1_1_0_4", "2021_2_2_0", "patch-0aac-2021_3_3_0_4"]), 3, "2021_2_2_0 lacks it");
        assert_eq!(left(&["patch-0aac-2021_3_3_0_4"]), 0, "its partition was dropped");
    }

    #[test]
    fn other_names_are_refused() {
        for name in [
            "",
            "all",
            "all_1_1",
            "all_2_1_0",
            "all_x_1_0",
            "_1_1_0",
            "all_1_1_0_2_3",
            "all_1_1_0_-2",
            "patch-2022_1_1_0",
        ] {
            assert_eq!(name.parse::<PartName>(), Err(PartNameError(name.into())), "{name}");
        }
    }
}
