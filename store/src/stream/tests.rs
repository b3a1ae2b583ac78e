// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checkpoints arrive byte for byte or not at all, over connections that break anywhere and from senders that lie.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::fixture::{files, noise, open, write, write_upon};
use crate::key::Key;
use crate::object::{Codec, Kind};
use crate::{Checkpoint, Compression, Progress, StoreError};

const NOBODY: Progress<'static> = &|_, _| ();

fn checkpoint(directory: &Path) -> Checkpoint {
    open(&write(directory, &[noise(5 << 20, 1), vec![7; 3 << 20]], &noise(300_000, 2)))
}

fn sealed(byte: u8) -> Codec {
    Codec { compression: Compression::Lz4, key: Some(Key::new(&[byte; 32])) }
}

/// Both ends of a connection of which the sender's breaks after so many bytes.
fn connection(breaks_after: usize) -> (Channel, Channel) {
    struct Breaking(UnixStream, usize);
    impl Write for Breaking {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.1 == 0 {
                let _ = self.0.shutdown(std::net::Shutdown::Both);
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            let written = self.0.write(&bytes[..bytes.len().min(self.1)])?;
            self.1 -= written;
            Ok(written)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (one, other) = UnixStream::pair().unwrap();
    let sender = Channel::new(one.try_clone().unwrap(), Breaking(one, breaks_after), true);
    (sender, Channel::new(other.try_clone().unwrap(), other, true))
}

/// Sends all of the checkpoints over one connection; returns what both sides say.
fn transfer(
    checkpoints: &[&Checkpoint],
    receiver: &mut Receiver,
    codec: &Codec,
    (sender, channel): (Channel, Channel),
) -> (Result<Sent, StoreError>, Result<Received, StoreError>) {
    thread::scope(|scope| {
        let sending = scope.spawn(move || {
            let mut sender = Sender::new(sender, codec.clone())?;
            let (last, first) = checkpoints.split_last().unwrap();
            for before in first {
                sender.send(before, Stage::Before, NOBODY)?;
            }
            sender.send(last, Stage::Last(None), NOBODY)
        });
        let received = receive(receiver, channel, codec);
        (sending.join().unwrap(), received)
    })
}

fn receive(receiver: &mut Receiver, channel: Channel, codec: &Codec) -> Result<Received, StoreError> {
    receiver.receive(&mut Connection::accept(channel, codec.clone())?, NOBODY)
}

#[test]
fn checkpoint_arrives_byte_for_byte_and_connections_that_break_are_gone_on_with() {
    let temporary = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(&temporary.path().join("from"));
    let to = temporary.path().join("to");
    for codec in [Codec::default(), sealed(1)] {
        let mut receiver = Receiver::new(&to).unwrap();
        for breaks_after in [0, 10, 60, 100, 3000, 50_000, 1_000_000] {
            let (sent, received) = transfer(&[&checkpoint], &mut receiver, &codec, connection(breaks_after));
            assert!(matches!(sent, Err(StoreError::Broken { .. })), "{breaks_after}: {sent:?}");
            assert!(matches!(received, Err(StoreError::Broken { .. })), "{breaks_after}: {received:?}");
            assert!(!to.exists());
        }
        // Another process, which has what the first has left.
        drop(receiver);
        let mut receiver = Receiver::new(&to).unwrap();
        let (sent, received) = transfer(&[&checkpoint], &mut receiver, &codec, connection(usize::MAX));
        let (sent, received) = (sent.unwrap(), received.unwrap());
        assert!(0 < sent.sent_chunks && sent.sent_chunks < sent.chunks, "{sent:?}");
        assert_eq!((received.received_chunks, received.received_bytes), (sent.sent_chunks, sent.sent_bytes));
        assert_eq!(files(&received.directory), files(checkpoint.path()));
        std::fs::remove_dir_all(&to).unwrap();
    }
}

#[test]
fn pipe_carries_all_of_it_and_a_part_of_it_makes_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let checkpoint = open(&write(&temporary.path().join("from"), &[noise(100_000, 1)], &noise(100_000, 2)));
    let bytes = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    struct Shared(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);
    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let channel = Channel::new(io::empty(), Shared(bytes.clone()), false);
    Sender::new(channel, sealed(3)).unwrap().send(&checkpoint, Stage::Last(None), NOBODY).unwrap();
    let bytes = bytes.lock().unwrap().clone();
    let to = temporary.path().join("to");
    let receive = |bytes: &[u8], codec: Codec| {
        let channel = Channel::new(io::Cursor::new(bytes.to_vec()), io::sink(), false);
        receive(&mut Receiver::new(&to).unwrap(), channel, &codec)
    };
    for length in (0..bytes.len()).step_by(bytes.len() / 40).chain([bytes.len() - 1]) {
        let error = receive(&bytes[..length], sealed(3)).unwrap_err();
        assert!(matches!(error, StoreError::Broken { .. }) && !to.exists(), "{length}: {error}");
    }
    // A changed bit is found wherever it is, of what comes first at every place.
    for at in (0..200).chain((200..bytes.len()).step_by(bytes.len() / 60)) {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        receive(&changed, sealed(3)).unwrap_err();
        assert!(!to.exists(), "{at}");
    }
    assert!(matches!(receive(&bytes, sealed(4)), Err(StoreError::OtherKey(_))));
    receive(&bytes, Codec::default()).unwrap_err();
    let received = receive(&bytes, sealed(3)).unwrap();
    assert_eq!(files(&received.directory), files(checkpoint.path()));
}

#[test]
fn sides_with_different_keys_take_nothing_from_each_other() {
    for (ours, theirs) in
        [(sealed(1), sealed(2)), (sealed(1), Codec::default()), (Codec::default(), sealed(1))]
    {
        let (sender, receiver) = connection(usize::MAX);
        thread::scope(|scope| {
            let greeting = scope.spawn(|| Connection::greet(sender, ours).map(drop));
            let accepted = Connection::accept(receiver, theirs).map(drop);
            accepted.unwrap_err();
            let error = greeting.join().unwrap().unwrap_err();
            assert!(matches!(error, StoreError::OtherKey(_)), "{error}");
        });
    }
    // Somebody who says that he has the key, and has not.
    let (one, other) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut one = one;
            one.write_all(&frame::greeting(frame::SENDER, 1, &[5; 32])).unwrap();
            one.write_all(&[6; 32]).unwrap();
            let mut said = Vec::new();
            one.read_to_end(&mut said).unwrap();
            assert!(String::from_utf8_lossy(&said).contains("does not prove"));
        });
        let channel = Channel::new(other.try_clone().unwrap(), other, true);
        assert!(matches!(Connection::accept(channel, sealed(1)), Err(StoreError::OtherKey(_))));
    });
}

/// Both sides of a connection that has come about, with short times.
fn connected(times: &connection::Times) -> (Connection, Connection) {
    let temporary = tempfile::tempdir().unwrap();
    let address = Address::Unix(temporary.path().join("socket"));
    let listener = Listener::bind(&address, &Codec::default(), false).unwrap();
    thread::scope(|scope| {
        let greeting = scope.spawn(|| {
            let channel = address.connect(&Codec::default(), false, Instant::now()).unwrap();
            Connection::greet_in(channel, Codec::default(), times).unwrap()
        });
        let channel = listener.accept(Instant::now() + Duration::from_secs(60)).unwrap();
        let receiver = Connection::accept_in(channel, Codec::default(), times).unwrap();
        (greeting.join().unwrap(), receiver)
    })
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn side_that_is_at_work_is_waited_for_and_one_that_is_silent_is_not() {
    let ms = Duration::from_millis;
    // Silent for much longer than is borne, but at work.
    let (sender, mut receiver) =
        connected(&connection::Times { greeting: LONG, silence: ms(1000), alive: ms(50) });
    thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(ms(1500));
            sender.write(&frame::Frame::End).unwrap();
        });
        let frame = frame::Frame::read(receiver.reader(), &[frame::END], 0).unwrap();
        assert_eq!(frame, frame::Frame::End);
    });
    let (_sender, mut receiver) =
        connected(&connection::Times { greeting: LONG, silence: ms(50), alive: LONG });
    let error = frame::Frame::read(receiver.reader(), &[frame::END], 0).unwrap_err();
    assert!(matches!(error, StoreError::Broken { .. }), "{error}");
    // A stranger who says nothing.
    let (_one, other) = UnixStream::pair().unwrap();
    let channel = Channel::of_unix(other).unwrap();
    let times = connection::Times { greeting: ms(50), silence: LONG, alive: LONG };
    assert!(matches!(
        Connection::accept_in(channel, Codec::default(), &times),
        Err(StoreError::Broken { .. })
    ));
}

#[test]
fn after_a_part_of_a_frame_nothing_more_is_sent() {
    struct Full(usize);
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let room = self.0.min(bytes.len());
            self.0 -= room;
            if room == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(room) }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut writer = connection::FrameWriter::new(Box::new(Full(20)));
    writer.send(&frame::Frame::Alive, true).unwrap();
    let chunk = frame::Frame::Chunk { place: 0, object: vec![1; 100] };
    assert!(writer.send(&chunk, true).is_err() && writer.send(&frame::Frame::Alive, true).is_err());
    // Nor is somebody waited for who only says that he is at work.
    assert_eq!(frame::Frame::read_failure(&mut io::repeat(7)), None);
}

#[test]
fn sockets_that_were_left_are_replaced_and_nothing_else() {
    let temporary = tempfile::tempdir().unwrap();
    let address = Address::Unix(temporary.path().join("socket"));
    let _listener = Listener::bind(&address, &Codec::default(), false).unwrap();
    let file = temporary.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    assert!(Listener::bind(&Address::Unix(file.clone()), &Codec::default(), false).is_err());
    assert_eq!(std::fs::read_to_string(file).unwrap(), "mine");
    // A socket that was left is replaced, one that somebody listens at is not.
    assert!(Listener::bind(&address, &Codec::default(), false).is_err());
    let left = temporary.path().join("left");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    assert!(left.exists());
    Listener::bind(&Address::Unix(left), &Codec::default(), false).unwrap();
}

#[test]
fn stream_of_an_earlier_connection_is_not_taken_again() {
    let temporary = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(&temporary.path().join("from"));
    let to = temporary.path().join("to");
    // Somebody between both keeps what the sender says.
    let (sender, between) = UnixStream::pair().unwrap();
    let (other, receiver) = UnixStream::pair().unwrap();
    let kept = thread::scope(|scope| {
        scope.spawn(|| {
            let channel = Channel::new(sender.try_clone().unwrap(), sender, true);
            Sender::new(channel, sealed(1)).unwrap().send(&checkpoint, Stage::Last(None), NOBODY).unwrap();
        });
        let (mut back, mut forth) = (other.try_clone().unwrap(), between.try_clone().unwrap());
        scope.spawn(move || io::copy(&mut back, &mut forth));
        scope.spawn(|| {
            let channel = Channel::new(receiver.try_clone().unwrap(), receiver.try_clone().unwrap(), true);
            super::tests::receive(&mut Receiver::new(&to).unwrap(), channel, &sealed(1)).unwrap();
            receiver.shutdown(std::net::Shutdown::Both).unwrap();
        });
        let mut kept = Vec::new();
        let (mut from, mut to) = (between, other);
        let mut buffer = vec![0; 1 << 16];
        while let Ok(bytes @ 1..) = from.read(&mut buffer) {
            kept.extend_from_slice(&buffer[..bytes]);
            if to.write_all(&buffer[..bytes]).is_err() {
                break;
            }
        }
        kept
    });
    assert!(to.exists());
    std::fs::remove_dir_all(&to).unwrap();
    let channel = Channel::new(io::Cursor::new(kept), io::sink(), true);
    let again = receive(&mut Receiver::new(&to).unwrap(), channel, &sealed(1));
    assert!(matches!(again, Err(StoreError::OtherKey(_))) && !to.exists(), "{again:?}");
}

#[test]
fn what_was_sent_before_the_last_index_is_not_sent_again() {
    let temporary = tempfile::tempdir().unwrap();
    let mut buffers = vec![noise(9 << 20, 1), noise(3 << 20, 2)];
    let first = write(&temporary.path().join("first"), &buffers, &noise(300_000, 3));
    buffers[0][4 << 20] ^= 1;
    let second = write_upon(&temporary.path().join("second"), &buffers, &noise(300_000, 3), Some(&first));
    let (first, second) = (open(&first), open(&second));
    let mut receiver = Receiver::new(&temporary.path().join("to")).unwrap();
    let (sent, received) =
        transfer(&[&first, &second], &mut receiver, &Codec::default(), connection(usize::MAX));
    let sent = sent.unwrap();
    assert!(sent.sent_bytes < 3 << 20, "{sent:?}");
    assert_eq!(files(&received.unwrap().directory), files(second.path()));
}

#[test]
fn chunks_that_were_not_asked_for_are_refused() {
    let temporary = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(&temporary.path().join("from"));
    let text = checkpoint.index().encode().unwrap();
    let chunk = crate::ChunkName::of(&text);
    let codec = Codec::default();
    let object = codec.encode(Kind::Index(""), &chunk, &text);
    let index = frame::IndexFrame {
        is_last: true,
        stopped_us: u64::MAX,
        bytes: chunk.bytes,
        name: chunk.hash,
        proof: [0; 32],
        object,
    };
    let of = |place: usize| {
        let bytes = checkpoint.read(place).unwrap();
        let object = codec.encode(Kind::Chunk, &checkpoint.index().chunks[place], &bytes);
        frame::Frame::Chunk { place: place as u32, object }
    };
    let other = frame::Frame::Chunk { place: 0, object: codec.encode(Kind::Chunk, &chunk, &text) };
    let beyond = frame::Frame::Chunk { place: 1 << 30, object: vec![0] };
    let cases: [(&[frame::Frame], &str); 6] = [
        (&[of(0), of(0)], "came twice"),
        (&[beyond], "was not asked for"),
        (&[other], "another hash"),
        (&[of(0), frame::Frame::End], "before all chunks"),
        (&[frame::Frame::Done { proof: [0; 32] }], "no place"),
        (&[frame::Frame::Failed("no disk".into())], "the sender says: no disk"),
    ];
    for (frames, reason) in cases {
        let mut bytes = frame::greeting(frame::SENDER, 0, &[0; 32]).to_vec();
        frame::Frame::Index(index.clone()).write(&mut bytes).unwrap();
        frames.iter().for_each(|frame| frame.write(&mut bytes).unwrap());
        let channel = Channel::new(io::Cursor::new(bytes), io::sink(), false);
        let to = temporary.path().join("to");
        let error = receive(&mut Receiver::new(&to).unwrap(), channel, &codec).unwrap_err();
        assert!(error.to_string().contains(reason), "{reason}: {error}");
        assert!(!to.exists());
    }
}

#[test]
fn addresses_are_what_they_say() {
    for text in ["-", "tcp://127.0.0.1:7000", "tcp://[::1]:0", "unix:/tmp/x", "tcp://host.example:65535"] {
        assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
    }
    for text in [
        "",
        "tcp://",
        "tcp://:7",
        "tcp://host",
        "tcp://host:65536",
        "tcp://host:x",
        "unix:",
        "/tmp/x",
        "http://a:1",
    ] {
        assert!(matches!(text.parse::<Address>(), Err(StoreError::Address { .. })), "{text}");
    }
}

#[test]
fn sockets_carry_checkpoints_and_tcp_wants_a_key() {
    let temporary = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(&temporary.path().join("from"));
    let tcp: Address = "tcp://127.0.0.1:0".parse().unwrap();
    assert!(matches!(Listener::bind(&tcp, &Codec::default(), false), Err(StoreError::Open { .. })));
    assert!(matches!(tcp.connect(&Codec::default(), false, Instant::now()), Err(StoreError::Open { .. })));
    let unix = Address::Unix(temporary.path().join("socket"));
    for (address, codec) in [(tcp, sealed(1)), (unix.clone(), Codec::default())] {
        let listener = Listener::bind(&address, &codec, false).unwrap();
        let to = listener.address();
        thread::scope(|scope| {
            let (checkpoint, codec) = (&checkpoint, &codec);
            let sending =
                scope.spawn(move || {
                    Sender::new(to.connect(codec, false, Instant::now()).unwrap(), codec.clone())
                        .unwrap()
                        .send(checkpoint, Stage::Last(None), NOBODY)
                });
            let channel = listener.accept(Instant::now() + Duration::from_secs(60)).unwrap();
            let to = temporary.path().join("to");
            let received = receive(&mut Receiver::new(&to).unwrap(), channel, codec);
            assert_eq!(files(&received.unwrap().directory), files(checkpoint.path()));
            sending.join().unwrap().unwrap();
        });
        std::fs::remove_dir_all(temporary.path().join("to")).unwrap();
    }
    assert!(!temporary.path().join("socket").exists());
    let listener = Listener::bind(&unix, &Codec::default(), false).unwrap();
    let error = listener.accept(Instant::now() + Duration::from_millis(10)).unwrap_err();
    assert!(error.to_string().contains("no sender came"), "{error}");
}
