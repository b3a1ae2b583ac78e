// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where softgpud listens: an abstract socket named after the user and the instance.

use nix::errno::Errno;
use nix::sys::socket::UnixAddr;

use super::start::Start;
use crate::transport::machine::fnv1a;

/// The environment variable that names the instance of softgpud, instead of its devices.
pub const INSTANCE_VARIABLE: &str = "STASIS_SOFTGPU_INSTANCE";

/// Bytes an abstract name can have: `sun_path` less the leading zero.
const MAX_NAME_BYTES: usize = 107;

/// The address of a softgpud, whether or not it runs.
#[derive(Clone, Debug)]
pub(super) struct Address {
    /// The socket's name without the leading zero byte.
    pub name: String,
    /// The targets, comma separated, or the name of a topology file ([`crate::transport::machine`]).
    pub devices: String,
    /// How it may be started.
    pub start: Start,
}

impl Address {
    /// The address for these targets, which depends on the user and the instance: `instance`, else
    /// [`INSTANCE_VARIABLE`].
    pub fn new(devices: &str, instance: Option<&str>) -> Self {
        let instance = instance.map(str::to_owned).or_else(|| std::env::var(INSTANCE_VARIABLE).ok());
        let instance = instance.filter(|name| !name.is_empty()).unwrap_or_else(|| format!("soft:{devices}"));
        let user = nix::unistd::geteuid().as_raw();
        Self { name: socket_name(user, &instance), devices: devices.to_owned(), start: Start::Softgpud }
    }

    pub fn socket(&self) -> Result<UnixAddr, Errno> {
        UnixAddr::new_abstract(self.name.as_bytes())
    }
}

/// The abstract name; an instance too long for a socket keeps its beginning and gets a hash of the whole.
fn socket_name(user: u32, instance: &str) -> String {
    let name = format!("stasis-softgpud.{user}.{instance}");
    if name.len() <= MAX_NAME_BYTES {
        return name;
    }
    let hash = format!(".{:016x}", fnv1a(instance.as_bytes()));
    let mut end = MAX_NAME_BYTES - hash.len();
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{hash}", &name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_name_is_readable_when_it_fits() {
        assert_eq!(socket_name(1000, "soft:gfx1100"), "stasis-softgpud.1000.soft:gfx1100");
    }

    #[test]
    fn instance_that_is_named_goes_before_the_environments() {
        let named = Address::new("gfx1100", Some("here"));
        assert!(named.name.ends_with(".here") && named.devices == "gfx1100", "{named:?}");
        assert!(Address::new("gfx1100", Some("")).name.ends_with(".soft:gfx1100"));
    }

    #[test]
    fn socket_name_of_long_instances_differ_and_fit() {
        let (a, b) = ("gfx1100,".repeat(40) + "gfx1100", "gfx1100,".repeat(40) + "gfx1101");
        let (a, b) = (socket_name(0, &a), socket_name(0, &b));
        assert_ne!(a, b);
        assert_eq!((a.len(), b.len()), (MAX_NAME_BYTES, MAX_NAME_BYTES));
        assert!(socket_name(0, &"é".repeat(90)).len() <= MAX_NAME_BYTES);
    }
}
