//! Path of a value in the object: a variable, then fields, `@items`, `@keys` or `@values`.

use std::{cell::RefCell, rc::Rc};

/// Path with the sharing of Go's slices, on which kube-apiserver's estimate depends: two paths
/// that extend the same path may share memory, and the second then overwrites the first.
#[derive(Clone, Debug, Default)]
pub(super) struct Path {
    names: Rc<RefCell<Vec<Rc<str>>>>,
    length: usize,
}

impl Path {
    pub(super) fn of_variable(name: &str) -> Self {
        Self::default().child(name)
    }

    /// Returns the path of a member.
    pub(super) fn child(&self, name: &str) -> Self {
        // Go doubles the capacity of a full slice, starting with one.
        let capacity = self.length.checked_next_power_of_two().unwrap_or_default();
        let is_full = self.length == 0 || self.length == capacity;
        let names = if is_full {
            let own = self.names.borrow();
            Rc::new(RefCell::new(own[..self.length].to_vec()))
        } else {
            Rc::clone(&self.names)
        };
        {
            let mut names = names.borrow_mut();
            match names.get_mut(self.length) {
                Some(place) => *place = name.into(),
                None => names.push(name.into()),
            }
        }
        Self {
            names,
            length: self.length + 1,
        }
    }

    /// Returns the path of a member in memory of its own.
    pub(super) fn copied_child(&self, name: &str) -> Self {
        let own = self.names.borrow()[..self.length].to_vec();
        let copy = Self {
            names: Rc::new(RefCell::new(own)),
            length: self.length,
        };
        copy.child(name)
    }

    /// Returns the names after the variable, or `None` for a value without a path.
    pub(super) fn members(&self) -> Option<Vec<Rc<str>>> {
        let names = self.names.borrow();
        (self.length > 0).then(|| names[1..self.length].to_vec())
    }
}
