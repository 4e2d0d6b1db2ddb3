//! A cursor over bytes that checks every length before it is used.

use super::{Limits, WireError};

/// Reads little-endian values and varints; never past the end, never beyond [`Limits`].
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
    /// Offset of `bytes[0]` in the stream, for messages.
    base: usize,
    pub limits: Limits,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0, base: 0, limits: Limits::default() }
    }

    pub fn with(bytes: &'a [u8], base: usize, limits: Limits) -> Self {
        Self { bytes, position: 0, base, limits }
    }

    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.position
    }

    pub fn offset(&self) -> usize {
        self.base + self.position
    }

    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    pub fn is_empty(&self) -> bool {
        self.remaining() == 0
    }

    /// What was read since `start` (a former [`Reader::position`]).
    pub fn since(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.position]
    }

    pub fn malformed(&self, what: impl Into<String>) -> WireError {
        WireError::Malformed { offset: self.offset(), what: what.into() }
    }

    /// Checks an announced count against `limit`.
    pub fn limit(&self, what: &'static str, value: u64, limit: u64) -> Result<usize, WireError> {
        if value > limit {
            return Err(WireError::Limit { offset: self.offset(), what, value, limit });
        }
        usize::try_from(value).map_err(|_| WireError::Limit { offset: self.offset(), what, value, limit })
    }

    pub fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let remaining = self.remaining();
        if remaining < count {
            return Err(WireError::Incomplete { offset: self.base + self.bytes.len(), needed: count - remaining });
        }
        let taken = &self.bytes[self.position..self.position + count];
        self.position += count;
        Ok(taken)
    }

    /// `count` values of `width` bytes each.
    pub fn take_values(&mut self, count: usize, width: usize) -> Result<&'a [u8], WireError> {
        let bytes = count.checked_mul(width).ok_or_else(|| self.malformed("a length that overflows"))?;
        self.take(bytes)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let mut value = [0; N];
        value.copy_from_slice(self.take(N)?);
        Ok(value)
    }

    pub fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn f64(&mut self) -> Result<f64, WireError> {
        Ok(f64::from_le_bytes(self.array()?))
    }

    /// LEB128, as ClickHouse writes lengths: at most ten bytes.
    pub fn varint(&mut self) -> Result<u64, WireError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.malformed("a varint of more than ten bytes"))
    }

    /// A count of elements that take at least `bytes_each` bytes; refused when the input cannot hold them, so that
    /// no more memory is taken than the input has.
    pub fn count(&mut self, what: &'static str, bytes_each: usize) -> Result<usize, WireError> {
        let announced = self.varint()?;
        let count = self.limit(what, announced, self.limits.rows_max)?;
        let needed = count.saturating_mul(bytes_each);
        if needed > self.remaining() {
            let offset = self.base + self.bytes.len();
            return Err(WireError::Incomplete { offset, needed: needed - self.remaining() });
        }
        Ok(count)
    }

    /// Bytes after a varint length.
    pub fn string(&mut self) -> Result<&'a [u8], WireError> {
        let announced = self.varint()?;
        let length = self.limit("string length", announced, self.limits.string_bytes_max)?;
        self.take(length)
    }

    pub fn text(&mut self) -> Result<&'a str, WireError> {
        let bytes = self.string()?;
        std::str::from_utf8(bytes).map_err(|_| self.malformed("a name that is not UTF-8"))
    }
}

pub fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub fn write_string(out: &mut Vec<u8>, bytes: &[u8]) {
    write_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            write_varint(&mut bytes, value);
            assert_eq!(Reader::new(&bytes).varint().unwrap(), value);
        }
        assert!(matches!(Reader::new(&[0xff; 11]).varint(), Err(WireError::Malformed { .. })));
    }

    #[test]
    fn an_announced_length_is_checked_before_memory_is_taken() {
        let mut bytes = Vec::new();
        write_varint(&mut bytes, u64::MAX);
        assert!(matches!(Reader::new(&bytes).string(), Err(WireError::Limit { .. })));
        let mut bytes = Vec::new();
        write_varint(&mut bytes, 1000);
        assert!(matches!(Reader::new(&bytes).count("values", 8), Err(WireError::Incomplete { needed: 8000, .. })));
    }
}
