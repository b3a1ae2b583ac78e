// SPDX-License-Identifier: MIT OR Apache-2.0
//! When a barrier packet is satisfied, by the values of the signals that it names.

use queues::aql::BarrierValue;

/// Barrier-value: the signal's masked value stands in the wanted relation; a null signal is no dependency.
pub(super) fn holds<E>(barrier: &BarrierValue, value: &dyn Fn(u64) -> Result<u64, E>) -> Result<bool, E> {
    if barrier.signal == 0 {
        return Ok(true);
    }
    Ok(barrier.is_satisfied_by(value(barrier.signal)?.cast_signed()))
}

/// Barrier-and: no dependency is pending; null handles are none.
pub(super) fn all_zero<E>(deps: [u64; 5], value: &dyn Fn(u64) -> Result<u64, E>) -> Result<bool, E> {
    for dep in deps.into_iter().filter(|&dep| dep != 0) {
        if value(dep)? != 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Barrier-or: one dependency has arrived, or there is none at all.
pub(super) fn any_zero<E>(deps: [u64; 5], value: &dyn Fn(u64) -> Result<u64, E>) -> Result<bool, E> {
    let mut none = true;
    for dep in deps.into_iter().filter(|&dep| dep != 0) {
        if value(dep)? == 0 {
            return Ok(true);
        }
        none = false;
    }
    Ok(none)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use queues::aql::Condition;

    use super::*;

    /// Signals whose handle is their value plus one.
    fn value(handle: u64) -> Result<u64, Infallible> {
        Ok(handle - 1)
    }

    #[test]
    fn all_zero_needs_every_signal_and_skips_null() {
        assert_eq!(all_zero([0; 5], &value), Ok(true));
        assert_eq!(all_zero([1, 0, 1, 0, 0], &value), Ok(true));
        assert_eq!(all_zero([1, 0, 2, 0, 0], &value), Ok(false));
    }

    #[test]
    fn barrier_value_looks_at_the_masked_value() {
        let barrier = BarrierValue { mask: 0xf, ..BarrierValue::new(0x25, Condition::Eq, 4) };
        assert_eq!(holds(&barrier, &value), Ok(true));
        assert_eq!(holds(&BarrierValue { value: 5, ..barrier }, &value), Ok(false));
        assert_eq!(holds(&BarrierValue { value: 5, signal: 0, ..barrier }, &value), Ok(true));
    }

    #[test]
    fn any_zero_needs_one_signal_and_skips_null() {
        assert_eq!(any_zero([0; 5], &value), Ok(true));
        assert_eq!(any_zero([2, 0, 1, 0, 0], &value), Ok(true));
        assert_eq!(any_zero([2, 0, 3, 0, 0], &value), Ok(false));
    }
}
