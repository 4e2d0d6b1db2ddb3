//! Lanes: the words of a column of states, told apart by width only.

/// One word per row.
#[derive(Debug, Clone, PartialEq)]
pub enum Lane {
    W1(Vec<u8>),
    W2(Vec<u16>),
    W4(Vec<u32>),
    W8(Vec<u64>),
    W16(Vec<u128>),
    W32(Vec<[u64; 4]>),
}

/// Some consecutive rows of a lane.
#[derive(Debug, Clone, Copy)]
pub enum LaneSlice<'a> {
    W1(&'a [u8]),
    W2(&'a [u16]),
    W4(&'a [u32]),
    W8(&'a [u64]),
    W16(&'a [u128]),
    W32(&'a [[u64; 4]]),
}

#[derive(Debug)]
pub enum LaneSliceMut<'a> {
    W1(&'a mut [u8]),
    W2(&'a mut [u16]),
    W4(&'a mut [u32]),
    W8(&'a mut [u64]),
    W16(&'a mut [u128]),
    W32(&'a mut [[u64; 4]]),
}

/// Runs `$body` with `$values` bound to the typed content of a lane, whatever its width.
macro_rules! each_width {
    ($kind:ident, $lane:expr, $values:ident => $body:expr) => {
        match $lane {
            $kind::W1($values) => $body,
            $kind::W2($values) => $body,
            $kind::W4($values) => $body,
            $kind::W8($values) => $body,
            $kind::W16($values) => $body,
            $kind::W32($values) => $body,
        }
    };
}
pub(crate) use each_width;

impl Lane {
    pub fn len(&self) -> usize {
        each_width!(Lane, self, values => values.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn slice(&self, rows: std::ops::Range<usize>) -> LaneSlice<'_> {
        match self {
            Self::W1(values) => LaneSlice::W1(&values[rows]),
            Self::W2(values) => LaneSlice::W2(&values[rows]),
            Self::W4(values) => LaneSlice::W4(&values[rows]),
            Self::W8(values) => LaneSlice::W8(&values[rows]),
            Self::W16(values) => LaneSlice::W16(&values[rows]),
            Self::W32(values) => LaneSlice::W32(&values[rows]),
        }
    }

    pub fn as_mut(&mut self) -> LaneSliceMut<'_> {
        match self {
            Self::W1(values) => LaneSliceMut::W1(values),
            Self::W2(values) => LaneSliceMut::W2(values),
            Self::W4(values) => LaneSliceMut::W4(values),
            Self::W8(values) => LaneSliceMut::W8(values),
            Self::W16(values) => LaneSliceMut::W16(values),
            Self::W32(values) => LaneSliceMut::W32(values),
        }
    }
}

impl LaneSliceMut<'_> {
    pub fn rows(&self, rows: std::ops::Range<usize>) -> LaneSlice<'_> {
        match self {
            Self::W1(values) => LaneSlice::W1(&values[rows]),
            Self::W2(values) => LaneSlice::W2(&values[rows]),
            Self::W4(values) => LaneSlice::W4(&values[rows]),
            Self::W8(values) => LaneSlice::W8(&values[rows]),
            Self::W16(values) => LaneSlice::W16(&values[rows]),
            Self::W32(values) => LaneSlice::W32(&values[rows]),
        }
    }

    /// The first `rows` rows, and those after them.
    pub fn split_at(self, rows: usize) -> (Self, Self) {
        macro_rules! halves {
            ($variant:ident, $values:expr) => {{
                let (first, rest) = $values.split_at_mut(rows);
                (Self::$variant(first), Self::$variant(rest))
            }};
        }
        match self {
            Self::W1(values) => halves!(W1, values),
            Self::W2(values) => halves!(W2, values),
            Self::W4(values) => halves!(W4, values),
            Self::W8(values) => halves!(W8, values),
            Self::W16(values) => halves!(W16, values),
            Self::W32(values) => halves!(W32, values),
        }
    }
}

/// A lane's word. Numbers are wrapped, not checked, as ClickHouse's sums are.
pub trait Word: Copy + Default + PartialEq + Send + Sync + 'static {
    const WIDTH: usize;
    const ONES: Self;
    /// The words of a lane of this width. Panics for other widths: a bug of the family that made the lane.
    fn of<'a>(lane: &LaneSlice<'a>) -> &'a [Self];
    fn lane(values: Vec<Self>) -> Lane;
    fn read(bytes: &[u8]) -> Self;
    fn write(self, out: &mut Vec<u8>);
    fn wrapping_add(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn less_unsigned(self, other: Self) -> bool;
    fn less_signed(self, other: Self) -> bool;
    /// Comparison of IEEE numbers by their bits; false where either is NaN or the width has no such format.
    fn less_float(self, other: Self) -> bool;
    fn is_nan(self) -> bool;
}

macro_rules! integer_word {
    ($unsigned:ty, $signed:ty, $variant:ident, $less_float:expr, $is_nan:expr) => {
        impl Word for $unsigned {
            const WIDTH: usize = size_of::<$unsigned>();
            const ONES: Self = <$unsigned>::MAX;
            fn of<'a>(lane: &LaneSlice<'a>) -> &'a [Self] {
                match lane {
                    LaneSlice::$variant(values) => values,
                    other => panic!("a lane of {} byte words was expected: {other:?}", Self::WIDTH),
                }
            }
            fn lane(values: Vec<Self>) -> Lane {
                Lane::$variant(values)
            }
            fn read(bytes: &[u8]) -> Self {
                let mut word = [0; size_of::<$unsigned>()];
                word.copy_from_slice(&bytes[..size_of::<$unsigned>()]);
                Self::from_le_bytes(word)
            }
            fn write(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn wrapping_add(self, other: Self) -> Self {
                <$unsigned>::wrapping_add(self, other)
            }
            fn and(self, other: Self) -> Self {
                self & other
            }
            fn or(self, other: Self) -> Self {
                self | other
            }
            fn xor(self, other: Self) -> Self {
                self ^ other
            }
            fn less_unsigned(self, other: Self) -> bool {
                self < other
            }
            fn less_signed(self, other: Self) -> bool {
                (self as $signed) < (other as $signed)
            }
            fn less_float(self, other: Self) -> bool {
                let less: fn($unsigned, $unsigned) -> bool = $less_float;
                less(self, other)
            }
            fn is_nan(self) -> bool {
                let is_nan: fn($unsigned) -> bool = $is_nan;
                is_nan(self)
            }
        }
    };
}

/// A BFloat16 is the upper half of an IEEE single.
fn bfloat(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

integer_word!(u8, i8, W1, |_, _| false, |_| false);
integer_word!(u16, i16, W2, |a, b| bfloat(a) < bfloat(b), |a| bfloat(a).is_nan());
integer_word!(u32, i32, W4, |a, b| f32::from_bits(a) < f32::from_bits(b), |a| f32::from_bits(a).is_nan());
integer_word!(u64, i64, W8, |a, b| f64::from_bits(a) < f64::from_bits(b), |a| f64::from_bits(a).is_nan());
integer_word!(u128, i128, W16, |_, _| false, |_| false);

impl Word for [u64; 4] {
    const WIDTH: usize = 32;
    const ONES: Self = [u64::MAX; 4];
    fn of<'a>(lane: &LaneSlice<'a>) -> &'a [Self] {
        match lane {
            LaneSlice::W32(values) => values,
            other => panic!("a lane of 32 byte words was expected: {other:?}"),
        }
    }
    fn lane(values: Vec<Self>) -> Lane {
        Lane::W32(values)
    }
    fn read(bytes: &[u8]) -> Self {
        std::array::from_fn(|limb| <u64 as Word>::read(&bytes[limb * 8..]))
    }
    fn write(self, out: &mut Vec<u8>) {
        self.iter().for_each(|limb| out.extend_from_slice(&limb.to_le_bytes()));
    }
    fn wrapping_add(self, other: Self) -> Self {
        let mut carry = false;
        std::array::from_fn(|limb| {
            let (sum, over) = self[limb].overflowing_add(other[limb]);
            let (sum, over_carry) = sum.overflowing_add(u64::from(carry));
            carry = over | over_carry;
            sum
        })
    }
    fn and(self, other: Self) -> Self {
        std::array::from_fn(|limb| self[limb] & other[limb])
    }
    fn or(self, other: Self) -> Self {
        std::array::from_fn(|limb| self[limb] | other[limb])
    }
    fn xor(self, other: Self) -> Self {
        std::array::from_fn(|limb| self[limb] ^ other[limb])
    }
    fn less_unsigned(self, other: Self) -> bool {
        self.iter().rev().lt(other.iter().rev())
    }
    fn less_signed(self, other: Self) -> bool {
        match (self[3] as i64).cmp(&(other[3] as i64)) {
            std::cmp::Ordering::Equal => self.less_unsigned(other),
            order => order.is_lt(),
        }
    }
    fn less_float(self, _: Self) -> bool {
        false
    }
    fn is_nan(self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limbs_add_with_carry_and_compare_by_the_highest() {
        let a = [u64::MAX, u64::MAX, 0, 0];
        assert_eq!(a.wrapping_add([1, 0, 0, 0]), [0, 0, 1, 0]);
        assert!([5, 0, 0, 0].less_unsigned([0, 1, 0, 0]));
        assert!([0, 0, 0, u64::MAX].less_signed([0; 4]));
    }
}
