// SPDX-License-Identifier: MIT OR Apache-2.0
//! Caches: of each level of an agent one.

use super::{Device, host};
use crate::abi::declared::*;
use crate::abi::{Answer, INVALID_ARGUMENT, Outcome, Status};
use crate::handles::{Kind, fixed, number};
use crate::instance::Instance;

const INVALID_CACHE: Status = Status(HSA_STATUS_ERROR_INVALID_CACHE);
/// Levels that an agent may have, of which handles are made.
const LEVELS: usize = 16;
const KIB: u32 = 1024;
/// A topology's bit for caches of data.
const DATA: u32 = 1;

/// A cache.
#[derive(Clone, Debug)]
pub struct Level {
    level: u8,
    kib: u32,
    name: String,
}

/// The caches of an agent by level, each once.
fn levels(device: &Device) -> Vec<Level> {
    let mut found: Vec<(u8, u32)> = device
        .node()
        .caches
        .iter()
        .filter(|cache| cache.kind & DATA != 0)
        .filter_map(|cache| Some((u8::try_from(cache.level).ok()?, cache.size)))
        .collect();
    if let (Device::Host { .. }, true) = (device, found.is_empty()) {
        found = host::caches().to_vec();
    }
    // Of several of a level the first in the topology: a GPU's vector caches come before the scalar ones.
    found.sort_by_key(|(level, _)| *level);
    found.dedup_by_key(|(level, _)| *level);
    found.truncate(LEVELS);
    let name = match device {
        Device::Host { name, .. } => name.as_str(),
        Device::Gpu(agent) => agent.name(),
    };
    found.into_iter().map(|(level, kib)| Level { level, kib, name: format!("{name} L{level}") }).collect()
}

/// Bytes of the first four levels.
pub fn sizes(device: &Device) -> [u32; 4] {
    let mut sizes = [0; 4];
    for Level { level, kib, .. } in levels(device) {
        if let Some(size) = sizes.get_mut(usize::from(level).wrapping_sub(1)) {
            *size = kib.saturating_mul(KIB);
        }
    }
    sizes
}

/// The handles of an agent's caches.
pub fn handles(instance: &Instance, agent: usize) -> Vec<hsa_cache_t> {
    let count = instance.agents.at(agent).map_or(0, |device| levels(device).len());
    let number = |level| queues::words::count(agent * LEVELS + level);
    (0..count).map(|level| hsa_cache_t { handle: fixed(Kind::Cache, number(level)) }).collect()
}

/// The cache of a handle.
///
/// # Errors
/// HSA_STATUS_ERROR_INVALID_CACHE.
pub fn find(instance: &Instance, cache: hsa_cache_t) -> Outcome<Level> {
    let number = number(Kind::Cache, cache.handle).ok_or(INVALID_CACHE)?;
    let device = instance.agents.at(number / LEVELS).ok_or(INVALID_CACHE)?;
    levels(device).into_iter().nth(number % LEVELS).ok_or(INVALID_CACHE)
}

pub fn answer(cache: Level, attribute: hsa_cache_info_t, answer: Answer) -> Outcome {
    match attribute {
        HSA_CACHE_INFO_NAME_LENGTH => answer.put(queues::words::count(cache.name.len())),
        HSA_CACHE_INFO_NAME => answer.bytes(cache.name.as_bytes()),
        HSA_CACHE_INFO_LEVEL => answer.put(cache.level),
        HSA_CACHE_INFO_SIZE => answer.put(cache.kib.saturating_mul(KIB)),
        _ => Err(INVALID_ARGUMENT),
    }
}
