// SPDX-License-Identifier: MIT OR Apache-2.0
//! What controllers order of the broker (`kfd::transport::control`).
//!
//! INVARIANT: the broker never waits for a controller. What a connection has ordered ends with it.

use std::os::fd::{AsFd, OwnedFd};

use kfd::linux;
use kfd::transport::control::{BrokerAnswer, BrokerOrder, broker_socket};
use kfd::transport::wire::{self, ReceiveBuffer, WireError};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};

use super::broker::listen;
use super::error::ServeError;
use super::peer::may_order;

/// Controllers that may be connected at a time.
const MAX_CONTROLLERS: usize = 16;

/// The controllers of a broker.
#[derive(Debug)]
pub(super) struct Orders {
    listener: OwnedFd,
    controllers: Vec<Controller>,
}

#[derive(Debug)]
struct Controller {
    socket: OwnedFd,
    holds: bool,
}

impl Orders {
    /// Takes orders for the broker on `socket`; `None` if another one does.
    ///
    /// # Errors
    /// As [`listen`].
    pub(super) fn listen(socket: &str) -> Result<Option<Self>, ServeError> {
        let listener = listen(&broker_socket(socket))?;
        Ok(listener.map(|listener| Self { listener, controllers: Vec::new() }))
    }

    /// Whether a controller is connected: the broker stays for it.
    pub(super) fn is_wanted(&self) -> bool {
        !self.controllers.is_empty()
    }

    /// Whether processes without an executor are to come later.
    pub(super) fn holds(&self) -> bool {
        self.controllers.iter().any(|controller| controller.holds)
    }

    /// What the broker waits for.
    pub(super) fn polled(&self) -> impl Iterator<Item = PollFd<'_>> {
        let sockets = self.controllers.iter().map(|controller| controller.socket.as_fd());
        std::iter::once(self.listener.as_fd()).chain(sockets).map(|fd| PollFd::new(fd, PollFlags::POLLIN))
    }

    /// Answers all orders that have come, by `carry_out`.
    pub(super) fn attend(&mut self, mut carry_out: impl FnMut(BrokerOrder) -> BrokerAnswer) {
        while let Some(socket) = self.accept() {
            self.controllers.push(Controller { socket, holds: false });
        }
        let mut buffer = ReceiveBuffer::new();
        self.controllers.retain_mut(|controller| {
            loop {
                match wire::receive::<BrokerOrder>(controller.socket.as_fd(), &mut buffer) {
                    Ok(received) => {
                        controller.holds |= received.message == BrokerOrder::Hold;
                        let answer = carry_out(received.message);
                        if wire::send(controller.socket.as_fd(), &answer, &[]).is_err() {
                            return false;
                        }
                    }
                    Err(WireError::System { errno: Errno::EAGAIN, .. }) => return true,
                    Err(_) => return false,
                }
            }
        });
    }

    fn accept(&self) -> Option<OwnedFd> {
        let socket = linux::accept(&self.listener).ok()?;
        if !may_order(socket.as_fd()) || self.controllers.len() >= MAX_CONTROLLERS {
            tracing::warn!(target: "server", "controller refused");
            return None;
        }
        linux::set_nonblocking(&socket, true).ok()?;
        wire::prepare_socket(socket.as_fd()).ok()?;
        Some(socket)
    }
}
