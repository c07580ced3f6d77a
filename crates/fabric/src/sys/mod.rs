//! System calls of the fabrics (Linux on x86-64).
//!
//! | file       | contents                                                                                   |
//! |------------|--------------------------------------------------------------------------------------------|
//! | `fence`    | process-wide fences (`membarrier`), futexes shared between processes, usable cores         |
//! | `liveness` | a word in shared memory which the kernel marks when its holder dies (robust list)          |
//! | `memory`   | arenas of registered memory: sealed memfds that grow in place and fail with a typed error  |
//! | `pages`    | ordinary, huge and gigantic pages, and how much is free of each                             |
//! | `generations` | which generation of each granule of that memory holds                                        |
//! | `range`    | reserved address space, and the errors of memory                                            |
//! | `card_file` | the file of a node in its session: header, mapping, whether its node is alive              |
//! | `session`  | the directory in which the nodes of a session find each other, and its cleaning            |
//! | `incarnations` | which incarnation of its rank a node begins that joins a session                            |
//! | `socket`   | control sockets that carry short messages and file descriptors                             |
//! | `alike`    | a large table whose entries begin alike, and take memory only when they are written         |
//! | `process`  | a number for this process, and whether another one has ended                                |
//! | `cgroup`   | the limits of this process's control groups: memory and cores                              |
//!
//! Nothing here knows of endpoints, regions or objects. All peers run under one user, which every file and every
//! socket checks; peers of the same user trust each other as threads of one program do.

pub(crate) mod alike;
pub(crate) mod card_file;
pub(crate) mod cgroup;
pub(crate) mod fence;
pub(crate) mod generations;
pub(crate) mod incarnations;
pub(crate) mod liveness;
pub(crate) mod memory;
pub(crate) mod pages;
pub(crate) mod process;
pub(crate) mod range;
pub(crate) mod session;
pub(crate) mod session_error;
pub(crate) mod socket;
