//! The relations between the methods of a type, and their consequences: groups, and a category for each method.

use core::marker::PhantomData;

use crate::analysis::Category;
use crate::data_type::Method;

/// Which update methods of a type conflict, which depend on others, and which can be summarised (§3.2, §3.3). Its
/// consequences: the synchronisation groups, and a category for each method.
///
/// ```
/// use farfield_hamband::analysis::Category;
/// use farfield_hamband::{Coordination, methods};
/// methods! {
///     #[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
///     enum CourseUpdate: CourseMethod {
///         AddCourse(u64),
///         DeleteCourse(u64),
///         Enrol { student: u64, course: u64 },
///         Register(u64),
///     }
/// }
/// use CourseMethod::*;
/// let courses = Coordination::none()
///     .conflict(AddCourse, DeleteCourse)
///     .conflict(Enrol, DeleteCourse)
///     .depends(Enrol, AddCourse)
///     .depends(Enrol, Register);
/// assert_eq!(courses.group_of(AddCourse), courses.group_of(Enrol)); // both conflict with `DeleteCourse`
/// assert_eq!(courses.category(Register), Category::ConflictFree);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Coordination<M> {
    /// By number of method and number of method.
    conflicts: Vec<Vec<bool>>,
    /// `depends[u][w]`: u depends on w.
    depends: Vec<Vec<bool>>,
    /// The summarisation group of each method.
    summarised: Vec<Option<usize>>,
    summary_groups: usize,
    methods: PhantomData<fn() -> M>,
}

impl<M: Method> Coordination<M> {
    /// No method conflicts with any, depends on any, or is summarised: that of a CRDT.
    ///
    /// ```
    /// # farfield_hamband::methods! {
    /// #     #[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
    /// #     enum U: M { Add(u64) }
    /// # }
    /// assert_eq!(farfield_hamband::Coordination::<M>::none().groups(), Vec::<Vec<M>>::new());
    /// ```
    pub fn none() -> Coordination<M> {
        let square = vec![vec![false; M::NAMES.len()]; M::NAMES.len()];
        Coordination {
            conflicts: square.clone(),
            depends: square,
            summarised: vec![None; M::NAMES.len()],
            summary_groups: 0,
            methods: PhantomData,
        }
    }

    /// Every method conflicts with every one: all calls go through one log, as in state machine replication. Any type
    /// may be replicated so.
    ///
    /// ```
    /// # farfield_hamband::methods! {
    /// #     #[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
    /// #     enum U: M { Add(u64), Clear }
    /// # }
    /// assert_eq!(farfield_hamband::Coordination::<M>::all().groups(), [[M::Add, M::Clear]]);
    /// ```
    pub fn all() -> Coordination<M> {
        let mut all = Coordination::none();
        all.conflicts.iter_mut().flatten().for_each(|conflict| *conflict = true);
        all
    }

    /// Two methods conflict: there are calls of them that have to be in one order, or that make each other
    /// impermissible.
    ///
    /// ```
    /// # farfield_hamband::methods! {
    /// #     #[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
    /// #     enum U: M { Add(u64), Remove(u64) }
    /// # }
    /// let set = farfield_hamband::Coordination::none().conflict(M::Add, M::Remove);
    /// assert!(set.conflicts(M::Remove, M::Add));
    /// ```
    #[must_use]
    pub fn conflict(mut self, one: M, other: M) -> Coordination<M> {
        self.conflicts[one.number()][other.number()] = true;
        self.conflicts[other.number()][one.number()] = true;
        self
    }

    /// A call of `method` may be permissible only after a call of `on`.
    ///
    /// ```
    /// # farfield_hamband::methods! {
    /// #     #[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
    /// #     enum U: M { Open(u64), Deposit(u64) }
    /// # }
    /// let bank = farfield_hamband::Coordination::none().depends(M::Deposit, M::Open);
    /// assert_eq!(bank.dependencies(M::Deposit), [M::Open]);
    /// ```
    #[must_use]
    pub fn depends(mut self, method: M, on: M) -> Coordination<M> {
        self.depends[method.number()][on.number()] = true;
        self
    }

    /// Any two calls of these methods are one call of one of them, which
    /// [`DataType::summarise`](crate::DataType::summarise) returns. A method is in one such group at most: the last
    /// that names it.
    ///
    /// ```
    /// # farfield_hamband::methods! {
    /// #     #[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
    /// #     enum U: M { Add(u64) }
    /// # }
    /// # use farfield_hamband::{Coordination, analysis::Category};
    /// assert_eq!(Coordination::none().summarised([M::Add]).category(M::Add), Category::Reducible);
    /// ```
    #[must_use]
    pub fn summarised(mut self, group: impl IntoIterator<Item = M>) -> Coordination<M> {
        for method in group {
            self.summarised[method.number()] = Some(self.summary_groups);
        }
        self.summary_groups += 1;
        self
    }

    /// Whether two methods conflict.
    ///
    /// ```
    /// # farfield_hamband::methods! {
    /// #     #[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
    /// #     enum U: M { Add(u64) }
    /// # }
    /// assert!(!farfield_hamband::Coordination::none().conflicts(M::Add, M::Add));
    /// ```
    pub fn conflicts(&self, one: M, other: M) -> bool {
        self.conflicts[one.number()][other.number()]
    }

    /// The methods that a method depends on (`Dep(u)`).
    ///
    /// ```
    /// # farfield_hamband::methods! {
    /// #     #[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
    /// #     enum U: M { Add(u64) }
    /// # }
    /// assert!(farfield_hamband::Coordination::none().dependencies(M::Add).is_empty());
    /// ```
    pub fn dependencies(&self, method: M) -> Vec<M> {
        M::ALL.iter().copied().filter(|on| self.depends[method.number()][on.number()]).collect()
    }

    /// The synchronisation groups: the connected components of the conflict graph. A method without conflicts is in
    /// none.
    ///
    /// ```
    /// # farfield_hamband::methods! {
    /// #     #[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
    /// #     enum U: M { AddMovie(u64), DeleteMovie(u64), AddCustomer(u64), DeleteCustomer(u64) }
    /// # }
    /// # use farfield_hamband::Coordination;
    /// use M::*;
    /// let movies = Coordination::none().conflict(AddMovie, DeleteMovie).conflict(AddCustomer, DeleteCustomer);
    /// assert_eq!(movies.groups(), [[AddMovie, DeleteMovie], [AddCustomer, DeleteCustomer]]); // each with a leader of its own
    /// ```
    pub fn groups(&self) -> Vec<Vec<M>> {
        let mut groups: Vec<Vec<M>> = Vec::new();
        for method in M::ALL.iter().copied().filter(|method| self.conflicts[method.number()].contains(&true)) {
            // Those that it joins become one.
            let (mut joined, apart): (Vec<_>, Vec<_>) =
                groups.into_iter().partition(|group| group.iter().any(|other| self.conflicts(method, *other)));
            groups = apart;
            joined.push(vec![method]);
            let mut group = joined.concat();
            group.sort_by_key(|method| method.number());
            groups.push(group);
        }
        groups.sort_by_key(|group| group[0].number());
        groups
    }

    /// The synchronisation group of a method, by its place in [`Coordination::groups`].
    ///
    /// ```
    /// # farfield_hamband::methods! {
    /// #     #[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
    /// #     enum U: M { Deposit(u64), Withdraw(u64) }
    /// # }
    /// let account = farfield_hamband::Coordination::none().conflict(M::Withdraw, M::Withdraw);
    /// assert_eq!((account.group_of(M::Deposit), account.group_of(M::Withdraw)), (None, Some(0)));
    /// ```
    pub fn group_of(&self, method: M) -> Option<usize> {
        self.groups().iter().position(|group| group.contains(&method))
    }

    /// The category of a method, which decides how its calls spread (§3.3).
    ///
    /// ```
    /// # farfield_hamband::methods! {
    /// #     #[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
    /// #     enum U: M { Deposit(u64), Withdraw(u64) }
    /// # }
    /// # use farfield_hamband::{Coordination, analysis::Category};
    /// use M::*;
    /// let account = Coordination::none().conflict(Withdraw, Withdraw).depends(Withdraw, Deposit).summarised([Deposit]);
    /// assert_eq!(account.category(Deposit), Category::Reducible);
    /// assert_eq!(account.category(Withdraw), Category::Conflicting);
    /// ```
    pub fn category(&self, method: M) -> Category {
        if self.conflicts[method.number()].contains(&true) {
            Category::Conflicting
        } else if self.summarised[method.number()].is_some() && !self.depends[method.number()].contains(&true) {
            Category::Reducible
        } else {
            Category::ConflictFree
        }
    }

    /// The summarisation groups that were named, also those with methods that are not reducible.
    ///
    /// ```
    /// # farfield_hamband::methods! {
    /// #     #[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
    /// #     enum U: M { Deposit(u64), Withdraw(u64) }
    /// # }
    /// let account = farfield_hamband::Coordination::none().summarised([M::Deposit]);
    /// assert_eq!(account.summary_groups(), [[M::Deposit]]);
    /// ```
    pub fn summary_groups(&self) -> Vec<Vec<M>> {
        let of = |group| M::ALL.iter().copied().filter(move |method| self.summarised[method.number()] == Some(group));
        (0..self.summary_groups).map(|group| of(group).collect()).filter(|group: &Vec<M>| !group.is_empty()).collect()
    }

    /// The number of the summarisation group of a method that is reducible.
    pub(crate) fn summary_of(&self, method: M) -> Option<usize> {
        self.summarised[method.number()].filter(|_| self.category(method) == Category::Reducible)
    }

    /// The number of summarisation groups that were named.
    pub(crate) fn summaries(&self) -> usize {
        self.summary_groups
    }

    /// All of it in words, so that replicas which differ in it do not open together.
    pub(crate) fn layout(&self) -> String {
        let square = |rows: &[Vec<bool>]| {
            let row = |row: &Vec<bool>| row.iter().map(|set| if *set { '1' } else { '0' }).collect::<String>();
            rows.iter().map(row).collect::<Vec<_>>().join(".")
        };
        let summarised = self.summarised.iter().map(|group| group.map_or("-".into(), |group| group.to_string()));
        format!(
            "methods={}, conflicts={}, dependencies={}, summaries={}",
            M::NAMES.join("."),
            square(&self.conflicts),
            square(&self.depends),
            summarised.collect::<Vec<_>>().join("."),
        )
    }
}
