// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver answers any sequence of calls: it never panics, and the client can always free all objects afterwards.

use super::harness::*;
use kfd::sys::*;
use proptest::prelude::*;

use crate::driver::ledger::Resource;

/// Eight bytes of an argument, in which GPU ids are not filled in yet.
#[derive(Clone, Copy, Debug)]
enum Field {
    /// A plain number.
    Plain(u64),
    /// A handle on a GPU.
    Handle { gpu: usize, index: u64 },
    /// A GPU id and another word, in either order.
    Pair { gpu: usize, word: u32, swapped: bool },
}

impl Field {
    fn bytes(self, client: &Client) -> [u8; 8] {
        let id = |gpu| u64::from(client.id(gpu));
        let value = match self {
            Self::Plain(value) => value,
            Self::Handle { gpu, index } => id(gpu) << 32 | index,
            Self::Pair { gpu, word, swapped: false } => u64::from(word) << 32 | id(gpu),
            Self::Pair { gpu, word, swapped: true } => id(gpu) << 32 | u64::from(word),
        };
        value.to_le_bytes()
    }
}

fn field() -> impl Strategy<Value = Field> {
    let numbers =
        vec![0u64, 1, 2, 3, 4096, 8192, 32768, 0x1000_0000, 0x1000_1000, 0x1001_0000, ARRAY, 1 << 32 | 1];
    let words = vec![0u32, 1, 2, 3, 100, 1024, 4096, GTT, VRAM, GTT | 1 << 27, 8, 16, 4];
    prop_oneof![
        6 => prop::sample::select(numbers).prop_map(Field::Plain),
        3 => (0usize..2, 0u64..6).prop_map(|(gpu, index)| Field::Handle { gpu, index }),
        5 => (0usize..2, prop::sample::select(words), any::<bool>())
            .prop_map(|(gpu, word, swapped)| Field::Pair { gpu, word, swapped }),
        1 => any::<u64>().prop_map(Field::Plain),
    ]
}

/// A command number, mostly of the memory and event ioctls, and its size if it differs from the table's.
fn command() -> impl Strategy<Value = (u8, Option<u16>)> {
    let often = [
        KfdIoctl::CreateQueue,
        KfdIoctl::CreateEvent,
        KfdIoctl::WaitEvents,
        KfdIoctl::AllocMemoryOfGpu,
        KfdIoctl::FreeMemoryOfGpu,
        KfdIoctl::MapMemoryToGpu,
        KfdIoctl::UnmapMemoryFromGpu,
    ];
    let often = prop::sample::select(often.to_vec()).prop_map(|ioctl| ioctl as u8);
    let number = prop_oneof![1 => 0u8..0x2a, 2 => often];
    (number, prop::option::weighted(0.1, 0u16..140))
}

/// Any command with any fields.
fn wild() -> impl Strategy<Value = ((u8, Option<u16>), Vec<Field>)> {
    (command(), prop::collection::vec(field(), 12))
}

/// A memory command whose fields have the right kinds and possibly wrong values.
fn shaped() -> impl Strategy<Value = ((u8, Option<u16>), Vec<Field>)> {
    let handle = || (0usize..2, 0u64..6).prop_map(|(gpu, index)| Field::Handle { gpu, index });
    let flags = prop::sample::select(vec![GTT, VRAM, GTT | 1 << 27, 8, 16, 4]);
    let alloc = (0u64..12, 1u64..5, 0usize..2, flags).prop_map(|(page, pages, gpu, word)| {
        let place = [0x1000_0000 + page * 4096, pages * 4096, 0, 0].map(Field::Plain);
        (
            (KfdIoctl::AllocMemoryOfGpu as u8, None),
            [&place[..], &[Field::Pair { gpu, word, swapped: false }]].concat(),
        )
    });
    let free = handle().prop_map(|handle| ((KfdIoctl::FreeMemoryOfGpu as u8, None), vec![handle]));
    let map_or_unmap = KfdIoctl::MapMemoryToGpu as u8..=KfdIoctl::UnmapMemoryFromGpu as u8;
    let map = (map_or_unmap, handle(), 1u64..5).prop_map(|(nr, handle, devices)| {
        ((nr, None), vec![handle, Field::Plain(ARRAY), Field::Plain(devices)])
    });
    prop_oneof![alloc, free, map]
}

/// Issues one command whose bytes are the fields.
fn issue(client: &Client, memory: &Memory, (nr, size): (u8, Option<u16>), fields: &[Field]) {
    let mut arg = [0u8; 512];
    for (chunk, field) in arg.chunks_exact_mut(8).zip(fields) {
        chunk.copy_from_slice(&field.bytes(client));
    }
    let own = KfdIoctl::from_number(nr.into()).map_or(16, |ioctl| ioctl.row().argument_bytes());
    let bytes = size.map_or(own, usize::from);
    let cmd = 0xc000_4b00 | (bytes as u32) << 16 | u32::from(nr);
    // Any answer is right here.
    let _ = client.process.ioctl(&client.kfd, cmd, &mut arg[..bytes], memory, &Fds::default());
}

proptest! {
    #[test]
    fn no_sequence_of_ioctls_panics(
        calls in prop::collection::vec(prop_oneof![wild(), shaped()], 1..80),
    ) {
        let client = Client::pair();
        let ids = [client.id(0), client.id(1), client.id(0), 0];
        let mut user = [0u8; 8192];
        user[..16].copy_from_slice(bytemuck::bytes_of(&ids));
        let memory = Memory::with(ARRAY, &user);
        // A wait without limit would block the test.
        client.process.canceller().cancel();
        for (command, fields) in &calls {
            issue(&client, &memory, *command, fields);
            if let [Field::Plain(length), Field::Plain(offset), ..] = fields[..] {
                let _ = client.process.mmap(&client.kfd, length, offset);
            }
        }
        prop_assert!(client.ledger.used(Resource::Vram(0)) <= client.gpus[0].vram_bytes());
        take_down(&client)?;
    }

    #[test]
    fn no_creation_arguments_panic(
        words in prop::collection::vec(prop::option::weighted(0.2, field()), 12),
        kind in 0u32..6,
    ) {
        let client = Client::pair();
        let mut parts = client.queue_parts(0, 0x1000_0000);
        let mut mixed = bytemuck::cast::<_, [[u8; 8]; 12]>(parts.args);
        for (slot, word) in mixed.iter_mut().zip(words) {
            if let Some(word) = word {
                *slot = word.bytes(&client);
            }
        }
        parts.args = bytemuck::cast(mixed);
        parts.args.queue_type = kind;
        if let Ok(id) = client.create(&mut parts.args) {
            client.destroy(id).unwrap();
        }
        take_down(&client)?;
    }
}

/// Checks that all objects can be destroyed, unmapped and freed, in that order, and that the ledger is empty then.
pub fn take_down(client: &Client) -> Result<(), TestCaseError> {
    let page = client.process.state.lock().event_page;
    for id in 0..1024 {
        let _ = client.destroy(id);
    }
    for gpu in 0..2 {
        let known = |gpu| client.process.user_id(gpu);
        let state = client.process.state.lock();
        let bos: Vec<(u32, u32)> = state.pdds[gpu].bos.iter().map(|(index, bo)| (index, bo.mapped)).collect();
        drop(state);
        for (index, mapped) in bos {
            let handle = u64::from(known(gpu)) << 32 | u64::from(index);
            for on in (0..2).filter(|on| mapped & 1 << on != 0) {
                prop_assert_eq!(client.unmap_list(handle, &[known(on)], 0).0, Ok(0));
            }
            prop_assert_eq!(client.free(handle).is_ok(), Some(handle) != page);
        }
        prop_assert_eq!(client.ledger.used(Resource::Vram(gpu)), 0);
        prop_assert_eq!(client.ledger.used(Resource::Queues(gpu)), 0);
    }
    // Only the event page stays until the process ends.
    prop_assert_eq!(client.ledger.used(Resource::System) == 0, page.is_none());
    Ok(())
}
