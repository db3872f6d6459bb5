//! The layout that an operation has chosen, with the room that it has taken on the OSTs.
//!
//! Rules: a repeated attempt first returns the reservations of the attempt before (its template may be another one by
//! then); so does an operation that fails. A replayed operation gets the layout of its first execution, whose reservation
//! was taken then.

use crate::osts::Osts;
use alloc::vec::Vec;
use core::cell::RefCell;
use nacre_types::{Failure, Layout, LayoutTemplate, OstIndex};

pub(crate) struct LayoutChoice<'a> {
    osts: &'a Osts,
    replayed: Option<Layout>,
    /// The OSTs on which room for an object was taken, one for each object.
    taken: RefCell<Vec<OstIndex>>,
}

impl<'a> LayoutChoice<'a> {
    pub(crate) fn new(osts: &'a Osts, replayed: Option<Layout>) -> Self {
        Self { osts, replayed, taken: RefCell::default() }
    }
    /// The one layout of an operation; instead of an earlier attempt's.
    pub(crate) fn only(&self, template: &LayoutTemplate) -> Result<Layout, Failure> {
        if let Some(layout) = &self.replayed {
            return Ok(layout.clone());
        }
        self.give_back(0);
        self.another(template)
    }
    /// One more.
    pub(crate) fn another(&self, template: &LayoutTemplate) -> Result<Layout, Failure> {
        let layout = self.osts.layout(template)?;
        self.taken.borrow_mut().extend(layout.components.iter().flat_map(|component| &component.stripes));
        Ok(layout)
    }
    /// The number of objects for which room was taken.
    pub(crate) fn count(&self) -> usize {
        self.taken.borrow().len()
    }
    /// Returns the room of all objects but the first `kept`.
    pub(crate) fn give_back(&self, kept: usize) {
        self.taken.borrow_mut().drain(kept..).for_each(|ost| self.osts.give_back(ost));
    }
    /// The operation is made.
    pub(crate) fn keep(self) {
        self.taken.take();
    }
}
impl Drop for LayoutChoice<'_> {
    fn drop(&mut self) {
        self.give_back(0);
    }
}
