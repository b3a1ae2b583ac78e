// SPDX-License-Identifier: MIT OR Apache-2.0
//! Words of error texts.

use std::fmt;

/// Items one after another.
pub(super) fn list<T: fmt::Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join("; ")
}
