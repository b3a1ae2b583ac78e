// SPDX-License-Identifier: MIT OR Apache-2.0
//! The compute registers of a queue, from which a dispatch takes its state.
//!
//! INVARIANT: they are exactly the registers of the descriptor's first dwords (`v11_compute_mqd`), so a queue off the
//! hardware loses none of them. Writes to any other register of the chip have no effect, and it reads as 0.

use queues::pm4::reg;
use queues::words::count;

use crate::client_gpus::mqd::{Reader, Writer};

/// Registers from `COMPUTE_DISPATCH_INITIATOR` to the last `COMPUTE_USER_DATA`.
const COUNT: usize = 0x50;
/// Code and scratch addresses lack their low 8 bits.
const ADDRESS_SHIFT: u32 = 8;
/// Bits of an address's high register.
const ADDRESS_HIGH: u32 = 0xff;

/// The registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Registers(Box<[u32; COUNT]>);

impl Default for Registers {
    fn default() -> Self {
        Self(Box::new([0; COUNT]))
    }
}

/// Place of a register, by its absolute dword address.
fn place(register: u32) -> Option<usize> {
    let offset = register.checked_sub(reg::COMPUTE_DISPATCH_INITIATOR)?;
    usize::try_from(offset).ok().filter(|&offset| offset < COUNT)
}

impl Registers {
    /// Whether this register is one of them.
    pub(super) fn holds(register: u32) -> bool {
        place(register).is_some()
    }

    /// What a register reads as.
    pub(super) fn get(&self, register: u32) -> u32 {
        place(register).and_then(|place| self.0.get(place)).copied().unwrap_or(0)
    }

    /// Three registers that follow each other: one value for each axis.
    pub(super) fn axes(&self, first: u32) -> [u32; 3] {
        [first, first.wrapping_add(1), first.wrapping_add(2)].map(|register| self.get(register))
    }

    /// All user data.
    pub(super) fn user_data(&self) -> [u32; 16] {
        std::array::from_fn(|at| self.get(reg::COMPUTE_USER_DATA_0 + count(at)))
    }

    /// An address of which two registers hold bits 8..48.
    pub(super) fn address(&self, low: u32) -> u64 {
        let high = self.get(low.wrapping_add(1)) & ADDRESS_HIGH;
        (u64::from(high) << 32 | u64::from(self.get(low))) << ADDRESS_SHIFT
    }

    /// Writes a register.
    pub(super) fn set(&mut self, register: u32, value: u32) {
        if let Some(place) = place(register).and_then(|place| self.0.get_mut(place)) {
            *place = value;
        }
    }

    /// Writes registers that follow each other.
    pub(super) fn set_all(&mut self, first: u32, values: &[u32]) {
        (first..).zip(values).for_each(|(register, &value)| self.set(register, value));
    }

    /// Writes them to their dwords of the descriptor.
    pub(super) fn store(&self, writer: &mut Writer) {
        self.0.iter().enumerate().for_each(|(place, &value)| writer.register(place, value));
    }

    /// Reads them from there.
    pub(super) fn load(reader: &Reader<'_>) -> Self {
        Self(Box::new(std::array::from_fn(|place| reader.register(place))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_around_the_compute_ones_swallow_writes() {
        let mut registers = Registers::default();
        registers.set_all(reg::COMPUTE_DISPATCH_INITIATOR - 1, &[1, 2]);
        registers.set_all(reg::COMPUTE_USER_DATA_0 + 15, &[3, 4]);
        registers.set(u32::MAX, 5);
        assert_eq!(registers.get(reg::COMPUTE_DISPATCH_INITIATOR - 1), 0);
        assert_eq!(registers.get(reg::COMPUTE_DISPATCH_INITIATOR), 2);
        assert_eq!(registers.user_data()[15], 3);
        assert_eq!(registers.get(reg::COMPUTE_USER_DATA_0 + 16), 0);
        assert_eq!(registers.get(u32::MAX), 0);
    }

    #[test]
    fn addresses_have_bits_8_to_48() {
        let mut registers = Registers::default();
        registers.set_all(reg::COMPUTE_PGM_LO, &[0x8000_0001, 0xffff_ff7f]);
        assert_eq!(registers.address(reg::COMPUTE_PGM_LO), 0x7f80_0000_0100);
    }
}
