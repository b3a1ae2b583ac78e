// SPDX-License-Identifier: MIT OR Apache-2.0
//! A connection both of whose sides have proved that they have the key, or that need none.
//!
//! INVARIANT: before that nothing is read but greetings, whose length is fixed, and for no longer than [`Times::greeting`]. Afterwards each side says
//! that it is at work as long as it is, so that silence means that it is gone.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::address::Channel;
use super::frame::{Frame, GREETING_BYTES, PROOF_BYTES, RECEIVER, SENDER, broken, greeting, parse_greeting};
use crate::error::StoreError;
use crate::object::Codec;
use crate::random::random;

/// How long a side waits for the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// TIMEOUT: for greetings and proofs.
    pub(super) greeting: Duration,
    /// TIMEOUT: how long the other side may be silent afterwards.
    pub(super) silence: Duration,
    /// How often a side says that it is at work.
    pub(super) alive: Duration,
}

const TIMES: Times = Times {
    greeting: Duration::from_secs(10),
    silence: Duration::from_secs(60),
    alive: Duration::from_secs(10),
};
/// TIMEOUT: for what a receiver says before it closes the connection.
const REASON: Duration = Duration::from_secs(5);

/// What both sides have said first: nobody has said the same before.
type Nonces = [[u8; PROOF_BYTES]; 2];

/// A connection to the other side.
#[derive(Debug)]
pub struct Connection {
    channel: Channel,
    codec: Codec,
    nonces: Nonces,
    alive: Option<KeepAlive>,
}

/// A writer that several threads use, a frame at a time.
pub(super) type Writer = Arc<Mutex<FrameWriter>>;

/// Writes whole frames, and after a part of one nothing more.
pub(super) struct FrameWriter {
    writer: Box<dyn Write + Send>,
    is_broken: bool,
}

impl FrameWriter {
    pub(super) fn new(writer: Box<dyn Write + Send>) -> Self {
        Self { writer, is_broken: false }
    }

    /// Writes a frame; what is not `flushed` may be sent later.
    pub(super) fn send(&mut self, frame: &Frame, flushed: bool) -> Result<(), StoreError> {
        self.attempt(|writer| {
            frame.write(writer)?;
            if flushed { writer.flush().map_err(broken(SENDING)) } else { Ok(()) }
        })
    }

    fn say(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let say = |writer: &mut dyn Write| writer.write_all(bytes).and_then(|()| writer.flush());
        self.attempt(|writer| say(writer).map_err(broken("the other side was not greeted")))
    }

    fn attempt(
        &mut self,
        write: impl FnOnce(&mut dyn Write) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        if self.is_broken {
            return Err(broken(SENDING)(ErrorKind::BrokenPipe.into()));
        }
        // Also after a panic in between.
        self.is_broken = true;
        write(&mut *self.writer)?;
        self.is_broken = false;
        Ok(())
    }
}

const SENDING: &str = "nothing more could be sent";

impl Connection {
    /// Greets a receiver, and waits until it has taken the key's proof.
    ///
    /// # Errors
    /// [`StoreError::OtherKey`], [`StoreError::Stream`], [`StoreError::Broken`].
    pub fn greet(channel: Channel, codec: Codec) -> Result<Self, StoreError> {
        Self::greet_in(channel, codec, &TIMES)
    }

    pub(super) fn greet_in(channel: Channel, codec: Codec, times: &Times) -> Result<Self, StoreError> {
        let until = Instant::now() + times.greeting;
        let mut this = Self { channel, codec, nonces: [random()?, [0; PROOF_BYTES]], alive: None };
        this.say(&greeting(SENDER, u8::from(this.channel.is_answered), &this.nonces[0]))?;
        if this.channel.is_answered {
            let said: [u8; GREETING_BYTES] = this.channel.read_by(until)?;
            this.nonces[1] = parse_greeting(&said, RECEIVER)?.1;
            if this.channel.read_by(until)? != this.proof("receiver", &[]) {
                return Err(StoreError::OtherKey(
                    "The receiver does not prove that it has the key of the sender",
                ));
            }
            this.say(&this.proof("sender", &[]))?;
            if let Frame::Failed(text) = Frame::read_accepted(&mut this.channel.reader)? {
                return Err(StoreError::Stream { what: format!("the receiver says: {text}") });
            }
        }
        this.begin(times)
    }

    /// Answers a sender that has connected.
    ///
    /// # Errors
    /// As for [`Connection::greet`].
    pub fn accept(channel: Channel, codec: Codec) -> Result<Self, StoreError> {
        Self::accept_in(channel, codec, &TIMES)
    }

    pub(super) fn accept_in(channel: Channel, codec: Codec, times: &Times) -> Result<Self, StoreError> {
        let until = Instant::now() + times.greeting;
        let mut this = Self { channel, codec, nonces: [[0; PROOF_BYTES]; 2], alive: None };
        let said: [u8; GREETING_BYTES] = this.channel.read_by(until)?;
        let (is_answered, of_sender) = parse_greeting(&said, SENDER)?;
        this.nonces[0] = of_sender;
        if is_answered != u8::from(this.channel.is_answered) {
            let what = "a pipe carries what was sent to a socket, or the other way round".to_owned();
            return Err(StoreError::Stream { what });
        }
        if this.channel.is_answered {
            this.nonces[1] = random()?;
            let said = [&greeting(RECEIVER, 0, &this.nonces[1])[..], &this.proof("receiver", &[])].concat();
            this.say(&said)?;
            if this.channel.read_by(until)? != this.proof("sender", &[]) {
                let error =
                    StoreError::OtherKey("The sender does not prove that it has the key of the receiver");
                // It may be gone; then there is nobody to tell.
                let _ = this.write(&Frame::Failed(error.to_string()));
                return Err(error);
            }
            this.write(&Frame::Alive)?;
        }
        this.begin(times)
    }

    fn begin(mut self, times: &Times) -> Result<Self, StoreError> {
        if self.channel.is_answered {
            self.channel.limit(times.silence).map_err(broken("the time to wait was not set"))?;
            self.alive = Some(KeepAlive::start(Arc::clone(&self.channel.writer), times.alive));
        }
        Ok(self)
    }

    /// What proves that this side, or the other, has the key, and says `what` on this connection: zeros without a key.
    pub(super) fn proof(&self, who: &str, what: &[u8]) -> [u8; PROOF_BYTES] {
        let said = || [who.as_bytes(), &self.nonces.concat(), what].concat();
        self.codec.key.as_ref().map_or([0; PROOF_BYTES], |key| key.answer(&said()))
    }

    /// Whether the other side can answer.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.channel.is_answered
    }

    pub(super) fn codec(&self) -> &Codec {
        &self.codec
    }

    pub(super) fn reader(&mut self) -> &mut dyn Read {
        &mut self.channel.reader
    }

    pub(super) fn writer(&self) -> &Writer {
        &self.channel.writer
    }

    fn say(&self, bytes: &[u8]) -> Result<(), StoreError> {
        self.channel.writer.lock().unwrap_or_else(PoisonError::into_inner).say(bytes)
    }

    /// Writes a frame, at once.
    pub(super) fn write(&self, frame: &Frame) -> Result<(), StoreError> {
        self.channel.writer.lock().unwrap_or_else(PoisonError::into_inner).send(frame, true)
    }

    /// What the other side has said before it closed the connection, if it has.
    pub(super) fn last_words(&mut self) -> Option<String> {
        self.channel.limit(REASON).ok()?;
        Frame::read_failure(&mut self.channel.reader)
    }
}

impl Channel {
    /// So many bytes, if they come before `until`.
    fn read_by<const N: usize>(&mut self, until: Instant) -> Result<[u8; N], StoreError> {
        let late = broken("no greeting came");
        let mut bytes = [0; N];
        let mut there = 0;
        let mut read = || -> io::Result<()> {
            while there < N {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() && self.is_answered {
                    return Err(ErrorKind::TimedOut.into());
                }
                self.limit(left)?;
                match self.reader.read(&mut bytes[there..]) {
                    Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                    Ok(more) => there += more,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        };
        read().map_err(late)?;
        Ok(bytes)
    }
}

/// A thread that says that this side is at work, as long as this is there.
#[derive(Debug)]
struct KeepAlive {
    /// The thread ends when it is gone.
    _end: Sender<()>,
}

impl KeepAlive {
    fn start(writer: Writer, often: Duration) -> Self {
        let (end, ended) = channel();
        let speak = move || {
            while ended.recv_timeout(often) == Err(RecvTimeoutError::Timeout) {
                // Somebody who writes says it as well.
                if let Ok(mut writer) = writer.try_lock()
                    && writer.send(&Frame::Alive, true).is_err()
                {
                    return;
                }
            }
        };
        // Without a thread the other side gives up if this one is at work for too long, and the next connection goes on.
        if let Err(error) = thread::Builder::new().name("stasis-alive".to_owned()).spawn(speak) {
            tracing::warn!(%error, "nobody says that this side is at work");
        }
        Self { _end: end }
    }
}
