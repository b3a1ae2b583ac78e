// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whatever a sender says, the receiver takes a whole checkpoint, whose chunks have their hashes, or refuses it, and writes nowhere else.
#![no_main]

use std::io::{self, Cursor};

use libfuzzer_sys::fuzz_target;
use stasis_store::{Channel, Codec, Connection, Receiver};

fuzz_target!(|bytes: &[u8]| {
    let Some((&first, bytes)) = bytes.split_first() else { return };
    let directory = std::env::temp_dir().join(format!("stasis-fuzz-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir(&directory).expect("a directory");
    let to = directory.join("to");
    let mut receiver = Receiver::new(&to).expect("an empty place");
    let channel = Channel::new(Cursor::new(bytes.to_vec()), io::sink(), first & 1 == 1);
    let accepted = Connection::accept(channel, Codec::default());
    let received = accepted.and_then(|mut connection| receiver.receive(&mut connection, &|_, _| ()));
    assert_eq!(received.is_ok(), to.exists());
    let names = std::fs::read_dir(&directory).expect("the directory");
    for name in names.map(|entry| entry.expect("an entry").file_name()) {
        assert!(name == "to" || name == "to.partial", "{name:?}");
    }
});
