// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals: their slots in shared memory, the events behind them, how they are made and waited for.

pub mod event;
pub mod live;
pub mod make;
pub mod wait;
