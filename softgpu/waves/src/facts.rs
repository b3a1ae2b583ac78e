// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of the lanes of a register before a program runs: above all, how far its values are apart.
//!
//! INVARIANT: a fact is true for every lane that it is claimed for, whatever the program's data; where nothing can be proved
//! it is [`Fact::NOTHING`].

/// What is known of a register of 32 bits. Its 32 lanes are groups of 2 to the power of `width` lanes; within a group, lane
/// `i` is the group's first value plus `i * stride`, modulo 2 to the power of 32. In wave64 both halves are so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fact {
    pub stride: u32,
    /// Of a group, as a power of two: 0 to 5.
    pub width: u8,
    /// The first value of every group is a multiple of 2 to this power (32: it is zero).
    pub align: u8,
    /// Every value is below 2 to this power.
    pub bits: u8,
    /// Whether the second 16 lanes have what the first have.
    pub repeats: bool,
}

impl Fact {
    pub(crate) const NOTHING: Fact = Fact { stride: 0, width: 0, align: 0, bits: 32, repeats: false };
    /// The same unknown value in all lanes.
    pub(crate) const UNIFORM: Fact = Fact { width: 5, repeats: true, ..Fact::NOTHING };

    /// The numbers of a workgroup's work-items as its waves' first register has them: 10 bits for each of the `asked`
    /// dimensions that matter. `None` where lanes of a wave have no common distance.
    pub(crate) fn of_items(group: [u32; 3], asked: u32) -> Option<Fact> {
        let [x, y, z] = group.map(|n| n.clamp(1, 1024));
        let greatest =
            ((x - 1) | (y - 1) << 10 | (z - 1) << 20) & if y == 1 && z == 1 { u32::MAX } else { asked };
        // CAST: at most 32.
        let bits = 32 - greatest.leading_zeros() as u8;
        let width = if y == 1 && z == 1 || x % 32 == 0 { 5 } else { x.trailing_zeros() as u8 };
        let is_whole = width == 5 || x.is_power_of_two();
        (is_whole && width > 0).then_some(Fact { stride: 1, width, align: width, bits, repeats: false })
    }

    pub(crate) fn constant(value: u32) -> Fact {
        // CAST: at most 32.
        let (align, bits) = (value.trailing_zeros() as u8, 32 - value.leading_zeros() as u8);
        Fact { align, bits, ..Fact::UNIFORM }
    }

    /// The same; it repeats if all groups begin with zero, the only multiple that is small enough.
    fn tiled(self) -> Fact {
        Fact { repeats: self.repeats || self.width <= 4 && self.align >= self.bits, ..self }
    }

    pub(crate) fn is_zero(self) -> bool {
        self.bits == 0
    }

    /// Whether the value is the same in all lanes of a group.
    fn is_uniform(self) -> bool {
        self.stride == 0
    }

    /// The distance from the first lane of a group to the last.
    fn span(self) -> u64 {
        u64::from(self.stride) * ((1 << self.width) - 1)
    }

    /// Whether the lanes of a group differ in bits below `align` only, where the first value has none.
    fn is_below_align(self) -> bool {
        self.span() < 1 << self.align
    }

    /// Whether no value of a group is beyond the next multiple of 2 to the power of 32.
    pub(crate) fn stays_in_range(self) -> bool {
        self.is_uniform() || self.is_below_align() || (self.bits < 32 && self.stride < 1 << 24)
    }

    /// The same with smaller groups.
    fn narrowed(self, width: u8) -> Fact {
        if width >= self.width {
            return self;
        }
        // CAST: at most 32.
        let step = (self.stride.trailing_zeros() as u8).saturating_add(width);
        let align = if self.is_uniform() { self.align } else { self.align.min(step) };
        let stride = if width == 0 { 0 } else { self.stride };
        Fact { stride, width, align, ..self }
    }

    /// Every value is a multiple of 2 to this power.
    fn common_align(self) -> u8 {
        // CAST: at most 32.
        self.align.min(self.stride.trailing_zeros() as u8)
    }

    /// What holds where either holds. A bound that grows is given up at once, so that joining again and again soon ends.
    pub(crate) fn join(self, other: Fact) -> Fact {
        let width = self.width.min(other.width);
        let (mut a, mut b) = (self.narrowed(width), other.narrowed(width));
        if a.stride != b.stride {
            (a, b) = (a.narrowed(0), b.narrowed(0));
        }
        let bits = if b.bits > a.bits { 32 } else { a.bits };
        Fact { align: a.align.min(b.align), bits, repeats: a.repeats && b.repeats, ..a }
    }

    pub(crate) fn add(self, other: Fact) -> Fact {
        let width = self.width.min(other.width);
        let (a, b) = (self.narrowed(width), other.narrowed(width));
        let bits = (a.bits.max(b.bits) + 1).min(32);
        let bits = if a.is_zero() { b.bits } else { bits };
        let bits = if b.is_zero() { a.bits } else { bits };
        let repeats = a.repeats && b.repeats;
        Fact { stride: a.stride.wrapping_add(b.stride), width, align: a.align.min(b.align), bits, repeats }
    }

    pub(crate) fn subtract(self, other: Fact) -> Fact {
        let width = self.width.min(other.width);
        let (a, b) = (self.narrowed(width), other.narrowed(width));
        let (align, repeats) = (a.align.min(b.align), a.repeats && b.repeats);
        Fact { stride: a.stride.wrapping_sub(b.stride), width, align, bits: 32, repeats }
    }

    /// The product; `value` is the other factor, if it is a constant.
    pub(crate) fn multiply(self, other: Fact, value: Option<u32>) -> Fact {
        let bits = (self.bits + other.bits).min(32);
        if let Some(value) = value {
            // CAST: at most 32.
            let align = self.align.saturating_add(value.trailing_zeros() as u8).min(32);
            return Fact { stride: self.stride.wrapping_mul(value), align, bits, ..self };
        }
        let width = self.width.min(other.width);
        let (mut a, mut b) = (self.narrowed(width), other.narrowed(width));
        if !a.is_uniform() || !b.is_uniform() {
            (a, b) = (a.narrowed(0), b.narrowed(0));
        }
        let repeats = a.repeats && b.repeats;
        Fact { stride: 0, width: a.width, align: (a.align + b.align).min(32), bits, repeats }
    }

    pub(crate) fn shift_left(self, by: u32) -> Fact {
        // CAST: below 32.
        let by = (by & 31) as u8;
        let align = if self.align == 32 { 32 } else { (self.align + by).min(32) };
        let bits = if self.is_zero() { 0 } else { (self.bits + by).min(32) };
        Fact { stride: self.stride << by, align, bits, ..self }
    }

    pub(crate) fn shift_right(self, by: u32) -> Fact {
        let by = by & 31;
        // CAST: below 32.
        let small = by as u8;
        let bits = self.bits.saturating_sub(small);
        let group = self.groups(|low, _| low >> by);
        let align = if group.align == 32 { 32 } else { group.align.saturating_sub(small) };
        Fact { align, bits, ..group }.tiled()
    }

    pub(crate) fn and(self, mask: u32) -> Fact {
        let of_mask = Fact::constant(mask);
        let group = self.groups(|low, _| low & mask);
        Fact { align: group.align.max(of_mask.align), bits: self.bits.min(of_mask.bits), ..group }.tiled()
    }

    pub(crate) fn inclusive_or(self, other: Fact) -> Fact {
        // Without a common bit it is a sum.
        if self.common_align() >= other.bits || other.common_align() >= self.bits {
            let bits = self.bits.max(other.bits);
            return Fact { bits, ..self.add(other) };
        }
        Fact::NOTHING
    }

    /// The largest groups in which an operation on the bits that differ from lane to lane gives values at a common distance,
    /// if it does to the other bits whatever it does, the same for all lanes. `of` gets the low bits and the alignment.
    fn groups(self, of: impl Fn(u32, u8) -> u32) -> Fact {
        for width in (1..=self.width).rev() {
            let group = self.narrowed(width);
            if !group.is_below_align() {
                continue;
            }
            let value = |lane: u32| of(group.stride.wrapping_mul(lane), group.align);
            let stride = value(1).wrapping_sub(value(0));
            if (0..1 << width).all(|lane| value(lane) == value(0).wrapping_add(lane.wrapping_mul(stride))) {
                return Fact { stride, ..group };
            }
        }
        self.narrowed(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn holds(fact: Fact, lanes: &[u32; 32]) -> bool {
        let size = 1 << fact.width;
        lanes.chunks(size).all(|group| {
            let aligned = fact.align == 0 || group[0].trailing_zeros() >= u32::from(fact.align);
            let apart = |(k, &x): (usize, &u32)| {
                x == group[0].wrapping_add(fact.stride.wrapping_mul(k as u32))
                    && (fact.bits == 32 || u64::from(x) < 1 << fact.bits)
            };
            aligned && group.iter().enumerate().all(apart)
        }) && (!fact.repeats || lanes[..16] == lanes[16..])
    }

    prop_compose! {
        /// A fact, and lanes that it holds for.
        fn known()(
            width in 0u8..6, align in 0u8..=32, shift in 0u32..8, odd in 0u32..3, bits in 0u8..=32,
            bases in proptest::array::uniform32(any::<u32>()), again: bool,
        ) -> (Fact, [u32; 32]) {
            let stride = if width == 0 { 0 } else { odd << shift };
            let base = |group: usize| {
                let aligned = if align == 32 { 0 } else { bases[group] >> align << align };
                if bits == 32 { aligned } else { aligned & ((1u64 << bits) - 1) as u32 }
            };
            let lanes: [u32; 32] = std::array::from_fn(|lane| {
                base(if again { lane & 15 } else { lane } >> width).wrapping_add(stride.wrapping_mul(lane as u32 & ((1 << width) - 1)))
            });
            let most = lanes.iter().map(|x| 32 - x.leading_zeros() as u8).max().unwrap();
            let repeats = lanes[..16] == lanes[16..];
            (Fact { stride, width, align, bits: most.max(bits).min(32), repeats }, lanes)
        }
    }

    fn each(a: [u32; 32], b: [u32; 32], f: impl Fn(u32, u32) -> u32) -> [u32; 32] {
        std::array::from_fn(|lane| f(a[lane], b[lane]))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn operations_on_facts_hold_for_the_lanes((f, a) in known(), (g, b) in known(), c: u32, by in 0u32..32) {
            prop_assert!(holds(f, &a) && holds(g, &b));
            prop_assert!(holds(f.add(g), &each(a, b, u32::wrapping_add)));
            prop_assert!(holds(f.subtract(g), &each(a, b, u32::wrapping_sub)));
            prop_assert!(holds(f.multiply(g, None), &each(a, b, u32::wrapping_mul)));
            let small = c >> by;
            prop_assert!(holds(f.multiply(Fact::constant(small), Some(small)), &a.map(|x| x.wrapping_mul(small))));
            prop_assert!(holds(f.shift_left(by), &a.map(|x| x << by)), "{:?} << {by} is {:?}", f, f.shift_left(by));
            prop_assert!(holds(f.shift_right(by), &a.map(|x| x >> by)), "{:?} >> {by} is {:?}", f, f.shift_right(by));
            for mask in [c, small, !small, c << by, (1 << by) - 1] {
                prop_assert!(holds(f.and(mask), &a.map(|x| x & mask)), "{:?} & {mask:x} is {:?}", f, f.and(mask));
            }
            prop_assert!(holds(f.inclusive_or(g), &each(a, b, |x, y| x | y)));
            prop_assert!(holds(f.join(g), &a) && holds(f.join(g), &b));
            if f.stays_in_range() {
                for group in a.chunks(1 << f.width) {
                    let first = u64::from(group[0]);
                    let far = |(k, &x): (usize, &u32)| u64::from(x) == first + u64::from(f.stride) * k as u64;
                    prop_assert!(group.iter().enumerate().all(far));
                }
            }
        }
    }

    #[test]
    fn indices_of_tiles_are_recognised() {
        // The number of a work-item of 256, as a wave's first register has it.
        let item = Fact { stride: 1, width: 5, align: 5, bits: 8, repeats: false };
        assert_eq!((item.and(15).width, item.and(15).stride), (4, 1));
        let column =
            item.and(15).shift_left(4).add(Fact::constant(512)).inclusive_or(Fact::UNIFORM.shift_left(12));
        assert_eq!(
            [item, item.and(15), column, item.shift_right(4)].map(|fact| fact.repeats),
            [false, true, true, false]
        );
        assert_eq!((item.shift_right(4).width, item.shift_right(4).stride), (4, 0));
        assert_eq!((item.shift_right(5).width, item.shift_right(5).stride), (5, 0));
        let row = item.shift_left(4).and(0x1f0);
        assert_eq!((row.width, row.stride, row.bits), (5, 16, 9));
        let tile = item.shift_right(5).shift_left(9).inclusive_or(row);
        assert_eq!((tile.width, tile.stride), (5, 16));
    }
}
