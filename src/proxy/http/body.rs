//! Where a message body ends. The bytes are followed, never changed: a chunked body goes on in the very chunks in
//! which it came.

/// What is still to come of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// Nothing: the message is complete.
    Done,
    /// `Content-Length`: this many bytes.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked(Chunk),
    /// Everything until the sender closes the connection.
    UntilClose,
}

/// The place within a chunked body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunk {
    /// In the line with a chunk's size (`extension`: behind the digits).
    Size { size: u64, digits: u8, extension: bool },
    /// In a chunk's data; this many bytes are left.
    Data(u64),
    /// In the line end that follows a chunk's data.
    DataEnd,
    /// In the lines after the last chunk; `line_bytes` of the present one were seen.
    Trailer { line_bytes: usize },
}

/// More hex digits than any chunk has (16 are 2^64 bytes).
const SIZE_DIGITS_MAX: u8 = 15;

impl Body {
    pub fn chunked() -> Self {
        Body::Chunked(Chunk::SIZE)
    }

    pub fn length(bytes: u64) -> Self {
        if bytes == 0 { Body::Done } else { Body::Length(bytes) }
    }

    pub fn is_done(&self) -> bool {
        *self == Body::Done
    }

    /// How many bytes of payload surely come next, without a frame between.
    pub fn contiguous(&self) -> u64 {
        match self {
            Body::Length(left) | Body::Chunked(Chunk::Data(left)) => *left,
            Body::UntilClose => u64::MAX,
            Body::Done | Body::Chunked(_) => 0,
        }
    }

    /// Takes note that `bytes` of those were passed on unseen.
    pub fn skip(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.contiguous());
        *self = match *self {
            Body::Length(left) => Body::length(left - bytes),
            Body::Chunked(Chunk::Data(left)) if left == bytes => Body::Chunked(Chunk::DataEnd),
            Body::Chunked(Chunk::Data(left)) => Body::Chunked(Chunk::Data(left - bytes)),
            other => other,
        };
    }

    /// How many of `bytes` belong to the body. A chunked body that breaks the rules turns into `UntilClose`:
    /// nobody can say where it ends, so everything is passed on and the connection ends with it.
    pub fn follow(&mut self, bytes: &[u8]) -> usize {
        self.follow_payload(bytes, |_| {})
    }

    /// As [`Body::follow`], and hands out the payload: the bytes without the chunks' frames.
    pub fn follow_payload(&mut self, bytes: &[u8], mut payload: impl FnMut(&[u8])) -> usize {
        match self {
            Body::Done => 0,
            Body::UntilClose => {
                payload(bytes);
                bytes.len()
            }
            Body::Length(left) => {
                let n = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                payload(&bytes[..n]);
                *self = Body::length(*left - n as u64);
                n
            }
            Body::Chunked(_) => self.follow_chunks(bytes, payload),
        }
    }

    fn follow_chunks(&mut self, bytes: &[u8], mut payload: impl FnMut(&[u8])) -> usize {
        let mut at = 0;
        while let (Body::Chunked(chunk), Some(&byte)) = (&mut *self, bytes.get(at)) {
            if let Chunk::Data(left) = chunk {
                let n = (bytes.len() - at).min(usize::try_from(*left).unwrap_or(usize::MAX));
                payload(&bytes[at..at + n]);
                at += n;
                *left -= n as u64;
                if *left == 0 {
                    *chunk = Chunk::DataEnd;
                }
                continue;
            }
            *self = match chunk.step(byte) {
                Some(Step::Within(next)) => Body::Chunked(next),
                Some(Step::End) => Body::Done,
                None => {
                    return {
                        *self = Body::UntilClose;
                        bytes.len()
                    };
                }
            };
            at += 1;
        }
        at
    }
}

enum Step {
    Within(Chunk),
    End,
}

impl Chunk {
    const SIZE: Chunk = Chunk::Size { size: 0, digits: 0, extension: false };

    /// The place after one byte of framing; `None`: this is no chunked body.
    fn step(&self, byte: u8) -> Option<Step> {
        let next = match (*self, byte) {
            (Chunk::Size { digits: 0, .. }, b'\n') => return None,
            (Chunk::Size { size: 0, .. }, b'\n') => Chunk::Trailer { line_bytes: 0 },
            (Chunk::Size { size, .. }, b'\n') => Chunk::Data(size),
            (Chunk::Size { size, digits, extension: true }, _) => Chunk::Size { size, digits, extension: true },
            (Chunk::Size { size, digits, extension: false }, _) => match char::from(byte).to_digit(16) {
                Some(_) if digits == SIZE_DIGITS_MAX => return None,
                Some(digit) => Chunk::Size { size: size << 4 | u64::from(digit), digits: digits + 1, extension: false },
                None if digits > 0 && matches!(byte, b'\r' | b';' | b' ' | b'\t') => {
                    Chunk::Size { size, digits, extension: true }
                }
                None => return None,
            },
            (Chunk::DataEnd, b'\r') => Chunk::DataEnd,
            (Chunk::DataEnd, b'\n') => Chunk::SIZE,
            (Chunk::DataEnd, _) => return None,
            (Chunk::Trailer { line_bytes: 0 }, b'\n') => return Some(Step::End),
            (Chunk::Trailer { .. }, b'\n') => Chunk::Trailer { line_bytes: 0 },
            (Chunk::Trailer { line_bytes }, b'\r') => Chunk::Trailer { line_bytes },
            (Chunk::Trailer { line_bytes }, _) => Chunk::Trailer { line_bytes: line_bytes + 1 },
            (Chunk::Data(_), _) => return None,
        };
        Some(Step::Within(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `wire` in pieces of `step` bytes; returns the payload and how many bytes belonged to the body.
    fn payload_of(mut body: Body, wire: &[u8], step: usize) -> (Vec<u8>, usize, Body) {
        let (mut payload, mut taken) = (Vec::new(), 0);
        for piece in wire.chunks(step) {
            let n = body.follow_payload(piece, |p| payload.extend_from_slice(p));
            taken += n;
            if n < piece.len() {
                break;
            }
        }
        (payload, taken, body)
    }

    #[test]
    fn chunks_end_where_they_end_however_they_are_cut() {
        let wire = b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nTrailer: 1\r\n\r\n";
        let with_next_request = [wire.as_slice(), b"GET / HTTP/1.1\r\n"].concat();
        for step in 1..with_next_request.len() {
            let (payload, taken, body) = payload_of(Body::chunked(), &with_next_request, step);
            assert_eq!(
                (payload.as_slice(), taken, body),
                (b"hello world".as_slice(), wire.len(), Body::Done),
                "step {step}"
            );
        }
    }

    #[test]
    fn a_broken_chunk_leaves_no_known_end() {
        for wire in [&b"\r\n"[..], b"zz\r\n", b"5\r\nhelloX", b"1111111111111111\r\n", b"-5\r\n"] {
            let (_, taken, body) = payload_of(Body::chunked(), wire, wire.len());
            assert_eq!((taken, body), (wire.len(), Body::UntilClose), "{wire:?}");
        }
    }

    #[test]
    fn a_length_stops_before_the_next_request() {
        assert_eq!(payload_of(Body::length(3), b"abcdef", 2), (b"abc".to_vec(), 3, Body::Done));
        assert_eq!(payload_of(Body::length(0), b"abcdef", 2), (Vec::new(), 0, Body::Done));
    }

    proptest::proptest! {
        /// Wherever a sender cuts its bytes, and whatever they are, the body is the same.
        #[test]
        fn cuts_do_not_matter(
            wire in proptest::collection::vec(proptest::sample::select(b"0123aF;x \r\n\r\n".to_vec()), 0..80),
            step in 1..10_usize,
        ) {
            let whole = payload_of(Body::chunked(), &wire, wire.len().max(1));
            let pieces = payload_of(Body::chunked(), &wire, step);
            // A broken body takes all that comes with it, and so more when more comes at once.
            if whole.2 != Body::UntilClose {
                proptest::prop_assert_eq!(whole, pieces);
            } else {
                proptest::prop_assert_eq!(pieces.2, Body::UntilClose);
            }
        }
    }
}
