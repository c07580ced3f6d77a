//! Relational schemata: relations that refer to each other, and two that do not.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Element, Never, initially_empty};
use crate::{Coordination, DataType, methods};

/// Projects, employees, and which employees work on which projects (§5 of the paper, after Hamsaz). `AddEmployee` is
/// reducible. `AddProject`, `DeleteProject` and `WorksOn` are one synchronisation group; `WorksOn` depends on
/// `AddProject` and `AddEmployee`.
///
/// ```
/// use farfield_hamband::DataType;
/// use farfield_hamband::types::{ProjectManagement, ProjectRefusal, ProjectUpdate::*};
/// let mut company = ProjectManagement::default();
/// company.apply(&AddEmployee(['a', 'b'].into()))?;
/// company.apply(&AddProject('p'))?;
/// company.apply(&WorksOn { employee: 'a', project: 'p' })?;
/// assert_eq!(company.apply(&DeleteProject('p')), Err(ProjectRefusal::HasEmployees));
/// # Ok::<(), ProjectRefusal>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(bound = "P: Element, E: Element")]
pub struct ProjectManagement<P, E> {
    projects: BTreeSet<P>,
    employees: BTreeSet<E>,
    /// By project. None is empty.
    works: BTreeMap<P, BTreeSet<E>>,
}

initially_empty!(ProjectManagement<P, E> { projects, employees, works });

methods! {
    /// The updates of a [`ProjectManagement`].
    ///
    /// ```
    /// use farfield_hamband::{DataType, types::{ProjectManagement, ProjectUpdate::AddEmployee}};
    /// let both = ProjectManagement::<u64, u64>::summarise(&AddEmployee([1].into()), &AddEmployee([2].into()));
    /// assert_eq!(both, Some(AddEmployee([1, 2].into())));
    /// ```
    #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
    #[serde(bound = "P: Element, E: Element")]
    pub enum ProjectUpdate<P: Element, E: Element>: ProjectMethod {
        /// Adds a project.
        AddProject(P),
        /// Deletes a project on which no employee works.
        DeleteProject(P),
        /// Says that an employee works on a project. Both are there.
        WorksOn {
            /// The employee.
            employee: E,
            /// The project.
            project: P,
        },
        /// Adds all these employees.
        AddEmployee(BTreeSet<E>),
    }
}

/// Why an update of a [`ProjectManagement`] is refused.
///
/// ```
/// use farfield_hamband::DataType;
/// use farfield_hamband::types::{ProjectManagement, ProjectRefusal, ProjectUpdate};
/// let works = ProjectUpdate::WorksOn { employee: 'a', project: 'p' };
/// assert_eq!(ProjectManagement::default().apply(&works), Err(ProjectRefusal::NoSuchEmployee));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum ProjectRefusal {
    /// An employee works on the project that is to be deleted.
    #[error("an employee works on the project")]
    HasEmployees,
    /// The employee is not there.
    #[error("there is no such employee")]
    NoSuchEmployee,
    /// The project is not there.
    #[error("there is no such project")]
    NoSuchProject,
}

impl<P: Element, E: Element> ProjectManagement<P, E> {
    /// All projects.
    ///
    /// ```
    /// assert!(farfield_hamband::types::ProjectManagement::<u64, u64>::default().projects().is_empty());
    /// ```
    pub fn projects(&self) -> &BTreeSet<P> {
        &self.projects
    }

    /// All employees.
    ///
    /// ```
    /// assert!(farfield_hamband::types::ProjectManagement::<u64, u64>::default().employees().is_empty());
    /// ```
    pub fn employees(&self) -> &BTreeSet<E> {
        &self.employees
    }

    /// Whether an employee works on a project.
    ///
    /// ```
    /// assert!(!farfield_hamband::types::ProjectManagement::default().works_on(&'a', &'p'));
    /// ```
    pub fn works_on(&self, employee: &E, project: &P) -> bool {
        self.works.get(project).is_some_and(|employees| employees.contains(employee))
    }
}

impl<P: Element, E: Element> DataType for ProjectManagement<P, E> {
    type Update = ProjectUpdate<P, E>;
    type Refusal = ProjectRefusal;

    fn apply(&mut self, update: &ProjectUpdate<P, E>) -> Result<(), ProjectRefusal> {
        self.check(update)?;
        match update {
            ProjectUpdate::AddProject(project) => {
                self.projects.insert(project.clone());
            }
            ProjectUpdate::DeleteProject(project) => {
                self.projects.remove(project);
            }
            ProjectUpdate::WorksOn { employee, project } => {
                self.works.entry(project.clone()).or_default().insert(employee.clone());
            }
            ProjectUpdate::AddEmployee(more) => self.employees.extend(more.iter().cloned()),
        }
        Ok(())
    }

    fn check(&self, update: &ProjectUpdate<P, E>) -> Result<(), ProjectRefusal> {
        match update {
            ProjectUpdate::DeleteProject(project) if self.works.contains_key(project) => {
                Err(ProjectRefusal::HasEmployees)
            }
            ProjectUpdate::WorksOn { employee, .. } if !self.employees.contains(employee) => {
                Err(ProjectRefusal::NoSuchEmployee)
            }
            ProjectUpdate::WorksOn { project, .. } if !self.projects.contains(project) => {
                Err(ProjectRefusal::NoSuchProject)
            }
            _ => Ok(()),
        }
    }

    fn invariant(&self) -> bool {
        let is_right = |employees: &BTreeSet<E>| !employees.is_empty() && employees.is_subset(&self.employees);
        self.works.iter().all(|(project, employees)| self.projects.contains(project) && is_right(employees))
    }

    fn coordination() -> Coordination<ProjectMethod> {
        use ProjectMethod::{AddEmployee, AddProject, DeleteProject, WorksOn};
        let projects = Coordination::none().conflict(AddProject, DeleteProject).conflict(DeleteProject, WorksOn);
        projects.depends(WorksOn, AddProject).depends(WorksOn, AddEmployee).summarised([AddEmployee])
    }

    fn summarise(first: &ProjectUpdate<P, E>, then: &ProjectUpdate<P, E>) -> Option<ProjectUpdate<P, E>> {
        match (first, then) {
            (ProjectUpdate::AddEmployee(a), ProjectUpdate::AddEmployee(b)) => Some(ProjectUpdate::AddEmployee(a | b)),
            _ => None,
        }
    }

    fn remainder(earlier: &ProjectUpdate<P, E>, later: &ProjectUpdate<P, E>) -> Option<ProjectUpdate<P, E>> {
        match (earlier, later) {
            (ProjectUpdate::AddEmployee(a), ProjectUpdate::AddEmployee(b)) => Some(ProjectUpdate::AddEmployee(b - a)),
            _ => None,
        }
    }
}

/// Courses, students and enrolments (§5 of the paper, after Hamsaz). `RegisterStudent` is irreducible conflict-free.
/// `AddCourse`, `DeleteCourse` and `Enroll` are one synchronisation group; `Enroll` depends on `AddCourse` and
/// `RegisterStudent`.
///
/// ```
/// use farfield_hamband::DataType;
/// use farfield_hamband::types::{Courseware, CoursewareRefusal, CoursewareUpdate::*};
/// let mut school = Courseware::default();
/// school.apply(&RegisterStudent('a'))?;
/// school.apply(&AddCourse('l'))?;
/// school.apply(&Enroll { student: 'a', course: 'l' })?;
/// assert_eq!(school.apply(&DeleteCourse('l')), Err(CoursewareRefusal::HasStudents));
/// # Ok::<(), CoursewareRefusal>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(bound = "S: Element, C: Element")]
pub struct Courseware<S, C> {
    students: BTreeSet<S>,
    courses: BTreeSet<C>,
    /// By course. None is empty.
    enrolled: BTreeMap<C, BTreeSet<S>>,
}

initially_empty!(Courseware<S, C> { students, courses, enrolled });

methods! {
    /// The updates of a [`Courseware`].
    ///
    /// ```
    /// use farfield_hamband::{DataType, types::{Courseware, CoursewareUpdate}};
    /// assert!(Courseware::<u64, u64>::default().check(&CoursewareUpdate::DeleteCourse(1)).is_ok());
    /// ```
    #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
    #[serde(bound = "S: Element, C: Element")]
    pub enum CoursewareUpdate<S: Element, C: Element>: CoursewareMethod {
        /// Adds a course.
        AddCourse(C),
        /// Deletes a course in which no student is enrolled.
        DeleteCourse(C),
        /// Enrols a student in a course. Both are there.
        Enroll {
            /// The student.
            student: S,
            /// The course.
            course: C,
        },
        /// Adds a student.
        RegisterStudent(S),
    }
}

/// Why an update of a [`Courseware`] is refused.
///
/// ```
/// use farfield_hamband::DataType;
/// use farfield_hamband::types::{Courseware, CoursewareRefusal, CoursewareUpdate};
/// let enroll = CoursewareUpdate::Enroll { student: 'a', course: 'l' };
/// assert_eq!(Courseware::default().apply(&enroll), Err(CoursewareRefusal::NoSuchStudent));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum CoursewareRefusal {
    /// A student is enrolled in the course that is to be deleted.
    #[error("a student is enrolled in the course")]
    HasStudents,
    /// The student is not there.
    #[error("there is no such student")]
    NoSuchStudent,
    /// The course is not there.
    #[error("there is no such course")]
    NoSuchCourse,
}

impl<S: Element, C: Element> Courseware<S, C> {
    /// All students.
    ///
    /// ```
    /// assert!(farfield_hamband::types::Courseware::<u64, u64>::default().students().is_empty());
    /// ```
    pub fn students(&self) -> &BTreeSet<S> {
        &self.students
    }

    /// All courses.
    ///
    /// ```
    /// assert!(farfield_hamband::types::Courseware::<u64, u64>::default().courses().is_empty());
    /// ```
    pub fn courses(&self) -> &BTreeSet<C> {
        &self.courses
    }

    /// Whether a student is enrolled in a course.
    ///
    /// ```
    /// assert!(!farfield_hamband::types::Courseware::default().is_enrolled(&'a', &'l'));
    /// ```
    pub fn is_enrolled(&self, student: &S, course: &C) -> bool {
        self.enrolled.get(course).is_some_and(|students| students.contains(student))
    }
}

impl<S: Element, C: Element> DataType for Courseware<S, C> {
    type Update = CoursewareUpdate<S, C>;
    type Refusal = CoursewareRefusal;

    fn apply(&mut self, update: &CoursewareUpdate<S, C>) -> Result<(), CoursewareRefusal> {
        self.check(update)?;
        match update {
            CoursewareUpdate::AddCourse(course) => self.courses.insert(course.clone()),
            CoursewareUpdate::DeleteCourse(course) => self.courses.remove(course),
            CoursewareUpdate::Enroll { student, course } => {
                self.enrolled.entry(course.clone()).or_default().insert(student.clone())
            }
            CoursewareUpdate::RegisterStudent(student) => self.students.insert(student.clone()),
        };
        Ok(())
    }

    fn check(&self, update: &CoursewareUpdate<S, C>) -> Result<(), CoursewareRefusal> {
        match update {
            CoursewareUpdate::DeleteCourse(course) if self.enrolled.contains_key(course) => {
                Err(CoursewareRefusal::HasStudents)
            }
            CoursewareUpdate::Enroll { student, .. } if !self.students.contains(student) => {
                Err(CoursewareRefusal::NoSuchStudent)
            }
            CoursewareUpdate::Enroll { course, .. } if !self.courses.contains(course) => {
                Err(CoursewareRefusal::NoSuchCourse)
            }
            _ => Ok(()),
        }
    }

    fn invariant(&self) -> bool {
        let is_right = |students: &BTreeSet<S>| !students.is_empty() && students.is_subset(&self.students);
        self.enrolled.iter().all(|(course, students)| self.courses.contains(course) && is_right(students))
    }

    fn coordination() -> Coordination<CoursewareMethod> {
        use CoursewareMethod::{AddCourse, DeleteCourse, Enroll, RegisterStudent};
        let courses = Coordination::none().conflict(AddCourse, DeleteCourse).conflict(DeleteCourse, Enroll);
        courses.depends(Enroll, AddCourse).depends(Enroll, RegisterStudent)
    }
}

/// Customers and movies: two relations that do not refer to each other (§5 of the paper). All methods conflict, in two
/// synchronisation groups: `AddCustomer` with `DeleteCustomer`, and `AddMovie` with `DeleteMovie`. Each has a leader of
/// its own.
///
/// ```
/// use farfield_hamband::DataType;
/// use farfield_hamband::types::{MovieRental, MovieUpdate::*};
/// let mut rental = MovieRental::default();
/// rental.apply(&AddCustomer('a'))?;
/// rental.apply(&AddMovie('s'))?;
/// rental.apply(&DeleteCustomer('a'))?;
/// assert!(rental.movies().contains(&'s') && rental.customers().is_empty());
/// # Ok::<(), farfield_hamband::types::Never>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(bound = "C: Element, M: Element")]
pub struct MovieRental<C, M> {
    customers: BTreeSet<C>,
    movies: BTreeSet<M>,
}

initially_empty!(MovieRental<C, M> { customers, movies });

methods! {
    /// The updates of a [`MovieRental`].
    ///
    /// ```
    /// use farfield_hamband::{DataType, types::{MovieRental, MovieUpdate}};
    /// assert!(MovieRental::<u64, u64>::default().check(&MovieUpdate::DeleteMovie(1)).is_ok());
    /// ```
    #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
    #[serde(bound = "C: Element, M: Element")]
    pub enum MovieUpdate<C: Element, M: Element>: MovieMethod {
        /// Adds a customer.
        AddCustomer(C),
        /// Deletes a customer.
        DeleteCustomer(C),
        /// Adds a movie.
        AddMovie(M),
        /// Deletes a movie.
        DeleteMovie(M),
    }
}

impl<C: Element, M: Element> MovieRental<C, M> {
    /// All customers.
    ///
    /// ```
    /// assert!(farfield_hamband::types::MovieRental::<u64, u64>::default().customers().is_empty());
    /// ```
    pub fn customers(&self) -> &BTreeSet<C> {
        &self.customers
    }

    /// All movies.
    ///
    /// ```
    /// assert!(farfield_hamband::types::MovieRental::<u64, u64>::default().movies().is_empty());
    /// ```
    pub fn movies(&self) -> &BTreeSet<M> {
        &self.movies
    }
}

impl<C: Element, M: Element> DataType for MovieRental<C, M> {
    type Update = MovieUpdate<C, M>;
    type Refusal = Never;

    fn apply(&mut self, update: &MovieUpdate<C, M>) -> Result<(), Never> {
        match update {
            MovieUpdate::AddCustomer(customer) => self.customers.insert(customer.clone()),
            MovieUpdate::DeleteCustomer(customer) => self.customers.remove(customer),
            MovieUpdate::AddMovie(movie) => self.movies.insert(movie.clone()),
            MovieUpdate::DeleteMovie(movie) => self.movies.remove(movie),
        };
        Ok(())
    }

    fn check(&self, _: &MovieUpdate<C, M>) -> Result<(), Never> {
        Ok(())
    }

    fn coordination() -> Coordination<MovieMethod> {
        use MovieMethod::{AddCustomer, AddMovie, DeleteCustomer, DeleteMovie};
        Coordination::none().conflict(AddCustomer, DeleteCustomer).conflict(AddMovie, DeleteMovie)
    }
}
