//! Bytes that were read from a socket and not yet passed on.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// What an idle connection holds. Heads of real requests and answers fit.
const SMALL_BYTES: usize = 16 << 10;

/// How far a buffer grows while a body streams through it: 256 KiB moves a gigabyte in about 4,000 pairs of
/// system calls and stays in the processor's cache.
pub const BULK_BYTES: usize = 256 << 10;

/// A growing window over the bytes of one direction of one connection.
#[derive(Debug)]
pub struct Buffer {
    data: Vec<u8>,
    start: usize,
    end: usize,
}

impl Buffer {
    pub fn new() -> Self {
        Self { data: Vec::new(), start: 0, end: 0 }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.data[self.start..self.end]
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Forgets the first `n` bytes.
    pub fn consume(&mut self, n: usize) {
        self.start += n;
        debug_assert!(self.start <= self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Reads once, behind the bytes that are there; returns how many came, 0 at the end of the stream.
    /// The buffer doubles when full, up to `bytes_max`; a buffer that is full even so is an error of `OutOfMemory`.
    /// Dropping the future loses nothing.
    pub async fn fill(&mut self, reader: &mut (impl AsyncRead + Unpin), bytes_max: usize) -> io::Result<usize> {
        if self.end == self.data.len() {
            self.make_room(bytes_max)?;
        }
        let n = reader.read(&mut self.data[self.end..]).await?;
        self.end += n;
        Ok(n)
    }

    /// As [`Buffer::fill`] into an empty buffer, but reads no more than `bytes_max`.
    pub async fn fill_some(&mut self, reader: &mut (impl AsyncRead + Unpin), bytes_max: usize) -> io::Result<usize> {
        debug_assert!(self.is_empty());
        if self.data.is_empty() {
            self.make_room(BULK_BYTES)?;
        }
        let room = self.data.len().min(bytes_max);
        self.end = reader.read(&mut self.data[..room]).await?;
        Ok(self.end)
    }

    fn make_room(&mut self, bytes_max: usize) -> io::Result<()> {
        if self.start > 0 {
            self.data.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        } else if self.data.len() < bytes_max {
            let grown = (self.data.len() * 2).clamp(SMALL_BYTES, bytes_max);
            self.data.resize(grown, 0);
        } else {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(())
    }

    /// Grows an empty buffer after a read that filled it whole: more is coming than one read takes.
    pub fn widen_if_filled(&mut self) {
        if self.end == self.data.len() && self.data.len() < BULK_BYTES {
            let grown = (self.data.len() * 2).clamp(SMALL_BYTES, BULK_BYTES);
            self.data.resize(grown, 0);
        }
    }

    /// Gives the memory of a bulk transfer back, when nothing is left in the buffer.
    pub fn shrink(&mut self) {
        if self.is_empty() && self.data.len() > SMALL_BYTES {
            self.data = Vec::new();
        }
    }
}
