//! Builds the rows of source partitions into runs: reads states chunk by chunk, several at once, makes sure that the
//! parts stood still, merges, writes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::chunk::{self, Chunk};
use super::coverage::{Parts, SourceSeen};
use super::finer::Finer;
use super::lock;
use super::manifest::{Run, Store};
use super::observe::Observer;
use super::part::Part;
use super::rebuild::{Progress, RebuildError};
use super::run::{self, Heartbeat};
use super::sources;
use super::states::{ALL_KEYS, KeyRange, RunWriter, States, StatesError};
use crate::config::physical_cores;
use crate::merge;
use crate::upstream::Upstream;
use crate::views::catalog::CatalogView;
use crate::wire::Block;

/// Times that what part merges and mutations broke is read again.
const ROUNDS_MAX: usize = 20;

/// Times that a partition too large for memory is begun anew, because its parts did not stand still.
const RANGES_ATTEMPTS: usize = 3;

/// Ranges of keys that a partition too large for memory is divided into, one after the other until they fit.
const RANGES: [u64; 5] = [4, 16, 64, 256, 1024];

/// How to build.
#[derive(Debug, Clone)]
pub struct Limits {
    /// States held at once, in bytes, as far as they are being read or merged.
    pub memory_bytes: usize,
    /// Queries under way at once.
    pub jobs: usize,
    /// About as many source rows are read by one query.
    pub chunk_rows: u64,
}

/// A partition whose rows are written.
#[derive(Debug)]
pub struct Built {
    pub partition: String,
    pub run: u64,
    /// The parts whose rows it holds, exactly.
    pub parts: Vec<Part>,
    /// Parts kept changing: some of the rows that were there at the start are not in `parts`.
    pub incomplete: bool,
}

/// One run and what was written to it.
pub struct OwnRun {
    pub writer: RunWriter,
    pub heartbeat: Heartbeat,
}

/// Builds partitions of one view; shared by the tasks that do.
pub struct Builder {
    pub upstream: Upstream,
    pub observer: Observer,
    pub view: CatalogView,
    pub states: Arc<States>,
    pub limits: Limits,
    pub progress: Arc<dyn Progress>,
    /// The sources when the build began.
    pub seen: Vec<SourceSeen>,
    permits: Semaphore,
    queue: Mutex<VecDeque<Vec<String>>>,
    /// The run that all partitions share which fit into memory.
    shared: tokio::sync::Mutex<OwnRun>,
    /// Runs of partitions that did not.
    own: Mutex<Vec<OwnRun>>,
}

type Read = Vec<(Chunk, Vec<Block>)>;

impl Builder {
    /// A builder of `partitions`. From now on its run is known to be alive.
    pub async fn start(
        upstream: Upstream,
        observer: Observer,
        view: CatalogView,
        seen: Vec<SourceSeen>,
        partitions: &[String],
        limits: Limits,
        progress: Arc<dyn Progress>,
    ) -> Result<Self, RebuildError> {
        let states = Arc::new(States::new(upstream.clone(), view.clone()).await?);
        let shared = own_run(&upstream, &states).await?;
        let queue = batches(&seen[0].parts, partitions, limits.chunk_rows);
        let permits = Semaphore::new(limits.jobs.max(1));
        Ok(Self {
            upstream,
            observer,
            view,
            states,
            limits,
            progress,
            seen,
            permits,
            queue: Mutex::new(queue),
            shared: tokio::sync::Mutex::new(shared),
            own: Mutex::default(),
        })
    }

    /// Builds all partitions. The runs are complete and written, but no manifest names them.
    pub async fn build(self: &Arc<Self>) -> Result<Vec<Built>, RebuildError> {
        let mut workers = JoinSet::new();
        for _ in 0..self.limits.jobs.max(1) {
            let builder = self.clone();
            workers.spawn(async move { builder.work().await });
        }
        let mut built = Vec::new();
        while let Some(worker) = workers.join_next().await {
            // The other workers end with the set when one has failed.
            built.extend(worker.map_err(|e| RebuildError::Task(e.to_string()))??);
        }
        self.shared.lock().await.writer.flush().await?;
        Ok(built)
    }

    /// The runs written, to be committed or dropped.
    pub async fn runs(&self) -> Vec<u64> {
        let mut runs = vec![self.shared.lock().await.writer.run()];
        runs.extend(lock(&self.own).iter().map(|own| own.writer.run()));
        runs
    }

    /// Rows sent to each run.
    pub async fn rows_written(&self) -> Vec<(u64, u64)> {
        let shared = self.shared.lock().await;
        let mut rows = vec![(shared.writer.run(), shared.writer.rows())];
        rows.extend(lock(&self.own).iter().map(|own| (own.writer.run(), own.writer.rows())));
        rows
    }

    async fn work(self: Arc<Self>) -> Result<Vec<Built>, RebuildError> {
        let mut built = Vec::new();
        loop {
            let Some(batch) = lock(&self.queue).pop_front() else { return Ok(built) };
            match self.build_batch(&batch).await {
                Ok(partitions) => built.extend(partitions),
                Err(RebuildError::States(StatesError::TooLarge { .. })) if batch.len() > 1 => {
                    lock(&self.queue).extend(batch.into_iter().map(|partition| vec![partition]));
                }
                Err(RebuildError::States(StatesError::TooLarge { bytes_max })) => {
                    for partition in batch {
                        built.push(self.build_by_ranges(partition, bytes_max).await?);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Bytes of states that one worker may hold before merging, which makes about as many.
    fn batch_bytes(&self) -> usize {
        self.limits.memory_bytes / self.limits.jobs.max(1) / 2
    }

    async fn build_batch(self: &Arc<Self>, batch: &[String]) -> Result<Vec<Built>, RebuildError> {
        let (read, left) = self.read_batch(batch).await?;
        let (chunks, blocks): (Vec<Chunk>, Vec<Vec<Block>>) = read.into_iter().unzip();
        let blocks = self.merge(blocks).await?;
        let mut shared = self.shared.lock().await;
        shared.writer.write(blocks).await?;
        let run = shared.writer.run();
        drop(shared);
        let mut parts: BTreeMap<String, Vec<Part>> = BTreeMap::new();
        for part in chunks.into_iter().flat_map(|chunk| chunk.parts) {
            parts.entry(part.name.partition.clone()).or_default().push(part);
        }
        let built = |partition: &String| Built {
            partition: partition.clone(),
            run,
            parts: parts.remove(partition).unwrap_or_default(),
            incomplete: left.iter().any(|part| part.name.partition == *partition),
        };
        Ok(batch.iter().map(built).collect())
    }

    /// Reads whole partitions: their chunks, and the parts that could not be read for all the changes.
    async fn read_batch(self: &Arc<Self>, batch: &[String]) -> Result<(Read, Vec<Part>), RebuildError> {
        let last_blocks: BTreeMap<String, i64> =
            batch.iter().map(|partition| (partition.clone(), self.last_block(partition))).collect();
        let mut active = self.seen[0].parts.clone();
        let mut read = Vec::new();
        let mut left = Vec::new();
        for _ in 0..ROUNDS_MAX {
            (read, left) = chunk::settle(read, &active, &last_blocks);
            if left.is_empty() {
                break;
            }
            let chunks = chunk::plan(&left, self.limits.chunk_rows);
            let held: usize = read.iter().flat_map(|(_, blocks)| blocks).map(Block::byte_size).sum();
            let new = self.read_chunks(chunks, self.batch_bytes().saturating_sub(held)).await?;
            active = self.standing_parts().await?;
            read.extend(new.into_iter().filter(|(chunk, _)| chunk.is_intact(&active)));
        }
        if !left.is_empty() {
            (read, left) = chunk::settle(read, &active, &last_blocks);
        }
        Ok((read, left))
    }

    /// The greatest block that the partition had when the build began.
    fn last_block(&self, partition: &str) -> i64 {
        let parts = self.seen[0].parts.get(partition);
        parts.into_iter().flatten().map(|part| part.name.max_block).max().unwrap_or(i64::MIN)
    }

    /// Reads chunks, as many at once as the limits allow.
    async fn read_chunks(self: &Arc<Self>, chunks: Vec<Chunk>, bytes_max: usize) -> Result<Read, RebuildError> {
        let mut queries = JoinSet::new();
        for chunk in chunks {
            let builder = self.clone();
            queries.spawn(async move {
                let blocks = builder.read_chunk(Some(&chunk), ALL_KEYS, bytes_max).await?;
                builder.progress.advance(chunk.rows());
                Ok::<_, RebuildError>((chunk, blocks))
            });
        }
        let mut read = Vec::new();
        let mut bytes = 0;
        while let Some(query) = queries.join_next().await {
            let (chunk, blocks) = query.map_err(|e| RebuildError::Task(e.to_string()))??;
            bytes += blocks.iter().map(Block::byte_size).sum::<usize>();
            if bytes > bytes_max {
                return Err(StatesError::TooLarge { bytes_max }.into());
            }
            read.push((chunk, blocks));
        }
        Ok(read)
    }

    async fn read_chunk(
        &self,
        chunk: Option<&Chunk>,
        range: KeyRange,
        bytes_max: usize,
    ) -> Result<Vec<Block>, RebuildError> {
        let _permit = self.permits.acquire().await.map_err(|e| RebuildError::Task(e.to_string()))?;
        Ok(self.states.read(chunk, range, bytes_max).await?)
    }

    async fn standing_parts(&self) -> Result<Arc<Parts>, RebuildError> {
        sources::standing_parts(&self.observer, &self.view, &self.seen).await
    }

    /// Merges the blocks of several chunks; those of a single one have one row per key already.
    async fn merge(&self, chunks: Vec<Vec<Block>>) -> Result<Vec<Block>, RebuildError> {
        if chunks.len() < 2 {
            return Ok(chunks.into_iter().flatten().collect());
        }
        self.states.merge_aside(chunks.into_iter().flatten().collect(), self.merge_threads()).await
    }

    fn merge_threads(&self) -> usize {
        let threads = merge::Options::for_cores(physical_cores()).threads;
        (threads / self.limits.jobs.max(1)).max(1)
    }

    /// Builds a partition whose states do not fit into memory, one range of keys after the other, into a run of its own:
    /// if its parts do not stand still for all ranges, that run is dropped and the partition begun anew.
    async fn build_by_ranges(self: &Arc<Self>, partition: String, bytes_max: usize) -> Result<Built, RebuildError> {
        let mut attempts = RANGES_ATTEMPTS;
        let mut ranges = RANGES.iter();
        let mut of = ranges.next();
        while let Some(ranges_count) = of.filter(|_| self.states.has_keys()) {
            let mut own = own_run(&self.upstream, &self.states).await?;
            match self.write_ranges(&mut own.writer, &partition, *ranges_count, bytes_max).await {
                Ok(Some(parts)) => {
                    let run = own.writer.run();
                    lock(&self.own).push(own);
                    return Ok(Built { partition, run, parts, incomplete: false });
                }
                Ok(None) if attempts <= 1 => {
                    self.states.drop_run(own.writer.run()).await?;
                    return Err(RebuildError::PartsMoving { partition, attempts: RANGES_ATTEMPTS });
                }
                Ok(None) => attempts -= 1,
                Err(RebuildError::States(StatesError::TooLarge { .. })) => of = ranges.next(),
                Err(error) => return Err(error),
            }
            self.states.drop_run(own.writer.run()).await?;
        }
        Err(RebuildError::Memory { partition, bytes_max })
    }

    /// One attempt; `None`: a part went away meanwhile.
    async fn write_ranges(
        self: &Arc<Self>,
        writer: &mut RunWriter,
        partition: &str,
        of: u64,
        bytes_max: usize,
    ) -> Result<Option<Vec<Part>>, RebuildError> {
        let active = self.standing_parts().await?;
        let parts = active.get(partition).map(Vec::as_slice).unwrap_or_default();
        let chunks = chunk::plan(parts, self.limits.chunk_rows);
        for at in 0..of {
            let mut blocks = Vec::new();
            let mut bytes = 0;
            for chunk in &chunks {
                let read = self.read_chunk(Some(chunk), KeyRange { at, of }, bytes_max - bytes).await?;
                bytes += read.iter().map(Block::byte_size).sum::<usize>();
                blocks.push(read);
                self.progress.advance(chunk.rows() / of);
                if bytes > bytes_max {
                    return Err(StatesError::TooLarge { bytes_max }.into());
                }
            }
            let active = self.standing_parts().await?;
            if !chunks.iter().all(|chunk| chunk.is_intact(&active)) {
                return Ok(None);
            }
            let merged = self.merge(blocks).await?;
            writer.write(merged).await?;
        }
        writer.flush().await?;
        Ok(Some(chunks.into_iter().flat_map(|chunk| chunk.parts).collect()))
    }

    /// Builds the partitions that a finer view holds from its rows.
    pub async fn derive(&self, finer: &Finer, store: &Store) -> Result<Vec<Built>, RebuildError> {
        let partitions: Vec<String> = finer.parts.keys().cloned().collect();
        let runs: Vec<Run> = finer.runs(&partitions).cloned().collect();
        let bytes = self.states.bytes_of_runs(&finer.view.storage.name, &runs).await?;
        let mut shared = self.shared.lock().await;
        for range in KeyRange::all(self.states.passes(bytes, self.limits.memory_bytes as u64)) {
            let blocks = self.states.read_finer(finer, &partitions, range).await?;
            shared.writer.write(self.states.merge_aside(blocks, self.merge_threads()).await?).await?;
        }
        shared.writer.flush().await?;
        finer.still_stands(store).await?;
        let run = shared.writer.run();
        let parts = finer.parts.clone().into_iter();
        Ok(parts.map(|(partition, parts)| Built { partition, run, parts, incomplete: false }).collect())
    }

    /// Builds a source without parts, which only `consistency: manual` allows, by one query.
    pub async fn build_whole(&self) -> Result<(), RebuildError> {
        let blocks = self.read_chunk(None, ALL_KEYS, self.limits.memory_bytes).await?;
        let mut shared = self.shared.lock().await;
        shared.writer.write(blocks).await?;
        Ok(shared.writer.flush().await?)
    }
}

async fn own_run(upstream: &Upstream, states: &Arc<States>) -> Result<OwnRun, RebuildError> {
    let id = run::new_id();
    let heartbeat = Heartbeat::start(upstream, id).await?;
    Ok(OwnRun { writer: states.writer(id), heartbeat })
}

/// How many queries read `partitions`, as long as their states fit into memory.
pub fn queries(parts: &Parts, partitions: &[String], chunk_rows: u64) -> usize {
    let of_batch = |batch: Vec<String>| -> usize {
        let parts: Vec<Part> = batch.iter().filter_map(|id| parts.get(id)).flatten().cloned().collect();
        chunk::plan(&parts, chunk_rows).len()
    };
    batches(parts, partitions, chunk_rows).into_iter().map(of_batch).sum()
}

/// Small partitions are read and checked together, large ones alone; large ones first.
fn batches(parts: &Parts, partitions: &[String], rows_max: u64) -> VecDeque<Vec<String>> {
    let rows = |id: &String| parts.get(id).into_iter().flatten().map(|part| part.rows).sum::<u64>();
    let mut sized: Vec<(u64, &String)> = partitions.iter().map(|id| (rows(id), id)).collect();
    sized.sort_by(|a, b| b.cmp(a));
    let mut batches: VecDeque<(u64, Vec<String>)> = VecDeque::new();
    for (rows, id) in sized {
        match batches.back_mut().filter(|(held, _)| held + rows <= rows_max) {
            Some((held, batch)) => {
                *held += rows;
                batch.push(id.clone());
            }
            None => batches.push_back((rows, vec![id.clone()])),
        }
    }
    batches.into_iter().map(|(_, batch)| batch).collect()
}
