//! The layout that an operation has chosen, with the room that it has taken on the OSTs.
//!
//! Rules: an operation that is tried again chooses anew (its template may be another one by then) and gives back what it
//! had; so does one that comes to nothing. A replayed one gets the layout of its first time, whose room is long taken.

use crate::osts::Osts;
use core::cell::RefCell;
use nacre_types::{Errno, Layout, LayoutTemplate};

pub(crate) struct Choice<'a> {
    osts: &'a Osts,
    replayed: Option<Layout>,
    taken: RefCell<Option<Layout>>,
}

impl<'a> Choice<'a> {
    pub(crate) fn new(osts: &'a Osts, replayed: Option<Layout>) -> Self {
        Self { osts, replayed, taken: RefCell::default() }
    }
    pub(crate) fn layout(&self, template: &LayoutTemplate) -> Result<Layout, Errno> {
        if let Some(layout) = &self.replayed {
            return Ok(layout.clone());
        }
        self.give_back();
        let layout = self.osts.layout(template)?;
        *self.taken.borrow_mut() = Some(layout.clone());
        Ok(layout)
    }
    /// The operation is made.
    pub(crate) fn keep(self) {
        self.taken.take();
    }
    fn give_back(&self) {
        if let Some(layout) = self.taken.take() {
            self.osts.give_back_all(&layout);
        }
    }
}
impl Drop for Choice<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}
