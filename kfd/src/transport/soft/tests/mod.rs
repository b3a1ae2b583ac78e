// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client side against a fake softgpud in this process.

mod calls;
mod criu;
mod gone;
mod lifetime;
mod server;
mod stalls;

use std::path::Path;
use std::sync::Arc;

use super::SoftTransport;
use crate::Kfd;
use crate::transport::{File, KFD_PATH, Transport};
use server::{Answer, Server};

fn devices() -> Vec<String> {
    vec!["gfx1100".to_owned()]
}

fn connect(server: &Server) -> SoftTransport {
    SoftTransport::connect_socket(server.name(), &devices()).unwrap()
}

/// A server that answers ioctls by `answer`, a transport on it, and an open `/dev/kfd`.
fn kfd(answer: impl Fn(server::Call) -> Answer + Send + Sync + 'static) -> (Server, SoftTransport, Kfd) {
    let server = Server::start(answer);
    let transport = connect(&server);
    let file = open(&transport);
    (server, transport, Kfd::new(file))
}

fn open(transport: &SoftTransport) -> Arc<dyn File> {
    transport.open(Path::new(KFD_PATH)).unwrap()
}
