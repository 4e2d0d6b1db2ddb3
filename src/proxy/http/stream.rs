//! Moves the rest of a body from one socket to another.
//!
//! Small pieces go through a buffer. Once a body has shown to be long, its bytes stay in the kernel: `splice` hands the
//! receive buffer's pages over to the other socket, and the proxy touches only the frames between chunks. On a machine
//! whose cores ClickHouse needs, every copy that we save is throughput (bench/results/2026-11-30-2core/proxy.md).

use std::io;

use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use super::body::Body;
use super::buffer::{BULK_BYTES, Buffer};

/// A body that has come this far is long enough to pay for a pipe.
const SPLICE_AFTER_BYTES: u64 = 512 << 10;

/// Shorter stretches (chunks) are copied: a splice costs four system calls.
const SPLICE_MIN_BYTES: u64 = 64 << 10;

/// What one splice moves at most, and the size that is asked for the pipe (Linux allows 1 MiB to everyone).
const PIPE_BYTES: usize = 1 << 20;

/// Between long chunks, no more is read than their frames and a little.
const FRAME_BYTES: usize = 1 << 10;

/// Which side a transfer broke on.
#[derive(Debug)]
pub enum StreamError {
    /// The sender ended before its body did.
    Ended,
    Read,
    Write,
}

/// Passes on what is still to come of `body`, and returns when it is complete.
pub async fn stream(
    from: &mut ReadHalf<'_>,
    buffer: &mut Buffer,
    to: &mut WriteHalf<'_>,
    body: &mut Body,
) -> Result<(), StreamError> {
    let mut moved = 0;
    let mut pipe = None;
    let mut is_pipe_refused = false;
    let mut fill_bytes = BULK_BYTES;
    while !body.is_done() {
        if buffer.is_empty() {
            if moved >= SPLICE_AFTER_BYTES && body.contiguous() >= SPLICE_MIN_BYTES && !is_pipe_refused {
                if pipe.is_none() {
                    pipe = Pipe::new().ok();
                    is_pipe_refused = pipe.is_none();
                }
                if let Some(pipe) = &pipe {
                    let n = pipe.pass_some(from.as_ref(), to.as_ref(), body.contiguous()).await?;
                    body.skip(n);
                    fill_bytes = FRAME_BYTES;
                    continue;
                }
            }
            match buffer.fill_some(from, fill_bytes).await {
                Ok(0) => return Err(StreamError::Ended),
                Ok(_) => fill_bytes = BULK_BYTES,
                Err(_) => return Err(StreamError::Read),
            }
        }
        let n = body.follow(buffer.bytes());
        to.write_all(&buffer.bytes()[..n]).await.map_err(|_| StreamError::Write)?;
        buffer.widen_if_filled();
        buffer.consume(n);
        moved += n as u64;
    }
    Ok(())
}

/// A pipe between two sockets, empty between calls.
struct Pipe {
    read: rustix::fd::OwnedFd,
    write: rustix::fd::OwnedFd,
}

impl Pipe {
    fn new() -> io::Result<Self> {
        use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Without the larger size, more and smaller steps do the same.
        let _ = fcntl_setpipe_size(&write, PIPE_BYTES);
        Ok(Self { read, write })
    }

    /// Waits until something has come, and passes up to `bytes_max` of it on.
    async fn pass_some(&self, from: &TcpStream, to: &TcpStream, bytes_max: u64) -> Result<u64, StreamError> {
        use rustix::pipe::{SpliceFlags, splice};
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX).min(PIPE_BYTES);
        let take = || Ok(splice(from, None, &self.write, None, bytes_max, flags)?);
        let taken = from.async_io(Interest::READABLE, take).await.map_err(|_| StreamError::Read)?;
        if taken == 0 {
            return Err(StreamError::Ended);
        }
        let mut left = taken;
        while left > 0 {
            let give = || Ok(splice(&self.read, None, to, None, left, flags)?);
            left -= to.async_io(Interest::WRITABLE, give).await.map_err(|_| StreamError::Write)?;
        }
        Ok(taken as u64)
    }
}
