//! The handler of each request, and the part of the door that gets each result of the front end.

use crate::abi::op;
use crate::door::{CallBytes, Door};
use crate::handlers::{attrs, data, dirs, locks, names, xattrs};
use crate::holders::Looked;
use crate::interrupt::Interrupted;
use crate::kernel_cache::KernelEvent;
use crate::ops::Ops;
use crate::reply::Body;
use crate::request::FuseRequest;
use crate::uring::transport::Transport;
use nacre_types::Errno;
use std::any::Any;
use std::rc::Rc;
use tracing::warn;

impl<O: Ops> Door<O> {
    /// Handles an [`Event::Door`](nacre_node::Event::Door): a request, or a result from the front end.
    pub fn event(self: &Rc<Self>, item: Box<dyn Any + Send>) {
        let item = match item.downcast::<FuseRequest>() {
            Ok(request) => return self.handle(*request),
            Err(item) => item,
        };
        let item = match item.downcast::<Looked>() {
            Ok(looked) => return self.looked(*looked),
            Err(item) => item,
        };
        let item = match item.downcast::<CallBytes>() {
            Ok(call) => return self.call_looked_at(*call),
            Err(item) => item,
        };
        let item = match item.downcast::<KernelEvent>() {
            Ok(event) => return self.kernel_event(*event),
            Err(item) => item,
        };
        match item.downcast::<Interrupted>().map_err(|item| item.downcast::<Transport>()) {
            Ok(interrupted) => self.interrupted(*interrupted),
            Err(Ok(transport)) => self.set_transport(&transport),
            Err(Err(_)) => warn!("a bug: a mount got an event that is not a request of the kernel"),
        }
    }

    /// Accepts a request. Its reply is pushed as [`FuseEffect::Reply`](crate::door::FuseEffect), in this visit or a later one.
    pub fn handle(self: &Rc<Self>, mut request: FuseRequest) {
        self.accept(&mut request);
        match request.opcode() {
            op::LOOKUP => self.run(request, names::lookup),
            op::GETATTR => self.run(request, attrs::getattr),
            op::STATX => self.run(request, attrs::statx),
            op::SETATTR => self.run(request, attrs::setattr),
            op::STATFS => self.run(request, attrs::statfs),
            op::READLINK => self.run(request, names::readlink),
            op::SYMLINK => self.run(request, names::symlink),
            op::MKNOD => self.run(request, names::mknod),
            op::MKDIR => self.run(request, names::mkdir),
            op::CREATE => self.run(request, names::create),
            op::TMPFILE => self.run(request, names::tmpfile),
            op::LINK => self.run(request, names::link),
            op::UNLINK => self.run(request, names::unlink),
            op::RMDIR => self.run(request, names::rmdir),
            op::RENAME => self.run(request, names::rename),
            op::RENAME2 => self.run(request, names::rename2),
            op::OPEN => self.run(request, data::open),
            op::READ => self.run(request, data::read),
            op::WRITE => self.run(request, data::write),
            op::FLUSH => self.run(request, data::flush),
            op::RELEASE => self.run(request, data::release),
            op::FSYNC | op::FSYNCDIR => self.run(request, data::fsync),
            op::FALLOCATE => self.run(request, data::fallocate),
            op::LSEEK => self.run(request, data::lseek),
            op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => self.run(request, data::copy_file_range),
            op::READDIR => self.run(request, dirs::readdir),
            op::READDIRPLUS => self.run(request, dirs::readdirplus),
            op::GETXATTR => self.run(request, xattrs::getxattr),
            op::SETXATTR => self.run(request, xattrs::setxattr),
            op::LISTXATTR => self.run(request, xattrs::listxattr),
            op::REMOVEXATTR => self.run(request, xattrs::removexattr),
            op::GETLK => self.run(request, locks::getlk),
            op::SETLK => self.run(request, locks::setlk),
            op::SETLKW => self.run(request, locks::setlkw),
            op::INTERRUPT => self.interrupt(&request),
            op::OPENDIR => self.run(request, dirs::opendir),
            op::RELEASEDIR => self.run(request, dirs::releasedir),
            op::DESTROY => self.reply(&request, Ok(Body::empty())),
            // No reply. The front end keeps FORGETs for `moved.rs`.
            op::FORGET | op::BATCH_FORGET | op::NOTIFY_REPLY => {}
            op::IOCTL => self.reply(&request, Err(Errno::ENOTTY)),
            // The kernel does not send the request again and uses a fallback: access by mode bits.
            _ => self.reply(&request, Err(Errno::ENOSYS)),
        }
    }
}
