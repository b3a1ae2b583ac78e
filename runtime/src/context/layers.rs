// SPDX-License-Identifier: MIT OR Apache-2.0
//! State that layers above the core keep in a context, by its type.
//!
//! INVARIANT: a context has at most one value of each type, and every caller gets the same one.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

/// State of a layer above the core.
pub trait Layer: Any + Send + Sync {
    /// What a context with this many agents starts with.
    fn new(agents: usize) -> Self;
}

/// The layers' state of one context.
#[derive(Default)]
pub(super) struct Layers(Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl fmt::Debug for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Layers").field(&self.0.lock().len()).finish()
    }
}

impl Layers {
    pub fn get<L: Layer>(&self, agents: usize) -> Arc<L> {
        let mut layers = self.0.lock();
        let layer = layers.entry(TypeId::of::<L>()).or_insert_with(|| Arc::new(L::new(agents)));
        let layer = Arc::clone(layer).downcast::<L>();
        layer.unwrap_or_else(|_| unreachable!("INVARIANT: a layer is stored under its own type"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Count(usize);

    impl Layer for Count {
        fn new(agents: usize) -> Self {
            Count(agents)
        }
    }

    #[test]
    fn a_layer_is_made_once() {
        let layers = Layers::default();
        let first: Arc<Count> = layers.get(3);
        let again: Arc<Count> = layers.get(5);
        assert!(Arc::ptr_eq(&first, &again));
        assert_eq!(first.0, 3);
    }
}
