//! Decides about a query: parse, plan, then what depends on the moment: settings, rights, coverage, names and types.
//!
//! Any doubt on the way sends the query to the raw tables, with the doubt as the reason.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dashmap::DashMap;

use super::client::HttpUpstream;
use super::decide::{self, Choice, Offer, Walk};
use super::facts::{Clients, NoAccess};
use super::query::{Confirmation, Decided, Decision, IncomingQuery, Mode, Wish};
use super::shadow::{Shadow, Subject};
use super::shapes::Shapes;
use crate::maintain::coverage::Staleness;
use crate::maintain::look::{Coverage, Look, LookError, Looker};
use crate::maintain::manifest::GRACE;
use crate::matching::plan::{Plan, PlannedBlock, may_concern, plan};
use crate::matching::rewrite::{RawSide, StoredColumn, StoredView};
use crate::matching::schema::{Schema, TableName};
use crate::matching::settings;
use crate::matching::view::View;
use crate::sql::tree::Statement;
use crate::sql::{ParseError, parse};
use crate::upstream::Upstream;
use crate::views::catalog::{Catalog, CatalogView};
use crate::views::storage::StorageColumn;

/// A decision may be made ahead by a look of this age, to be confirmed by a new one. Far below the time for which runs are
/// kept after they went out of use.
const AHEAD_AGE_MAX: Duration = Duration::from_secs(20);

/// What was stale this short a time ago is not looked at again before the query goes to the raw tables.
const STALE_AGE_MAX: Duration = Duration::from_millis(500);

/// After a decision by an earlier look turned out wrong, new looks are taken first for this time: a query that is sent
/// twice costs more than a look.
const UNSTEADY_AGE_MAX: Duration = Duration::from_secs(2);

/// Runs that a look named are there for this time at least: it is far below [`GRACE`]. An answer that begins later, since
/// ClickHouse was held up, may have found nothing in a run that was dropped meanwhile, and is looked after.
const RUNS_STAND: Duration = Duration::from_secs(GRACE.as_secs() / 2);

/// Plans kept; beyond this the cache is emptied.
const PLANS_MAX: usize = 10_000;

/// Texts longer than this are planned anew each time instead of being kept as keys.
const PLAN_KEY_BYTES_MAX: usize = 16 * 1024;

/// The views in force, and all that is needed to decide by them.
pub struct Accelerator {
    schema: Schema,
    views: Vec<Arc<View>>,
    /// By storage table, since there may be two definitions of one view.
    catalog: HashMap<String, CatalogView>,
    looker: Looker,
    clients: Clients,
    shapes: Shapes,
    plans: DashMap<(String, String), Arc<Plan>>,
    /// When an earlier look last turned out wrong, by storage table.
    unsteady: Arc<DashMap<String, Instant>>,
    client: HttpUpstream,
    shadow: Arc<Shadow>,
}

/// A decision with all that led to it, for `explain`.
#[derive(Debug, Clone)]
pub struct Explanation {
    pub decision: Decision,
    pub plan: Option<Arc<Plan>>,
    /// What the look showed of each view that matches, by storage table.
    pub coverages: Vec<(String, Coverage)>,
    /// Set when the decision was made ahead of the look that proves it.
    pub confirmation: Option<Confirmation>,
}

/// When the sources are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Looking {
    /// Before the decision.
    First,
    /// Beside the query, where an earlier look gives something to go by.
    Ahead,
}

/// What still has to be shown when a rewritten query is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    /// The look began after the query had arrived.
    Given,
    /// An earlier look is to be confirmed by one beside the query.
    Beside,
    /// The raw side of a hybrid answer is read at a moment of its own: a look is to show that nothing was amiss then.
    After,
    /// Other blocks read tables at a moment of their own: as `After`, but a view that may be older may be so here too.
    Behind,
}

/// A decision by one look.
struct Walked {
    decision: Decision,
    /// The answer reads tables beside views.
    is_mixed: bool,
    /// Storage tables of the views that answer.
    storages: Vec<String>,
}

/// How far a definition of a view is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    NeverBuilt,
    /// Built, but it may not answer at the moment.
    Built,
    MayAnswer,
}

/// The way a decision ends early.
type Step<T> = Result<T, String>;

impl Accelerator {
    /// Prepares for the views of a catalog; ClickHouse is asked what its system tables can tell.
    pub async fn connect(upstream: Upstream, client: HttpUpstream, catalog: Catalog) -> Result<Self, LookError> {
        let targets = catalog.views.iter().map(CatalogView::target).collect();
        let looker = Looker::connect(upstream, targets).await?;
        Ok(Self {
            schema: catalog.schema,
            views: catalog.views.iter().map(|v| v.view.clone()).collect(),
            catalog: catalog.views.into_iter().map(|v| (v.storage_name().to_string(), v)).collect(),
            looker,
            clients: Clients::new(client.clone()),
            shapes: Shapes::new(client.clone()),
            plans: DashMap::new(),
            unsteady: Arc::default(),
            client: client.clone(),
            shadow: Arc::new(Shadow::new(0.0)),
        })
    }

    /// Compares some of the answers with those of the raw tables.
    pub fn with_shadow(self, shadow: Arc<Shadow>) -> Self {
        Self { shadow, ..self }
    }

    /// What to send in place of a query.
    pub async fn decide(&self, query: IncomingQuery) -> Decision {
        self.explain(&query).await.decision
    }

    /// As [`Accelerator::decide`], but where an earlier look at the sources would allow an answer from a view, decides by
    /// that at once; the look that proves it runs beside the query and is awaited before the first byte of the answer.
    pub async fn decide_ahead(&self, query: &IncomingQuery) -> Decided {
        let explanation = self.explain_with(query, Looking::Ahead).await;
        Decided { decision: explanation.decision, confirmation: explanation.confirmation }
    }

    /// The decision, with the reasons.
    pub async fn explain(&self, query: &IncomingQuery) -> Explanation {
        self.explain_with(query, Looking::First).await
    }

    async fn explain_with(&self, query: &IncomingQuery, looking: Looking) -> Explanation {
        let decision = Decision::NotAQuery;
        let mut seen = Explanation { decision, plan: None, coverages: Vec::new(), confirmation: None };
        seen.decision = match self.steps(query, looking, &mut seen).await {
            Ok(decision) => decision,
            Err(reason) => Decision::Raw { reason: short(&reason) },
        };
        seen
    }

    async fn steps(&self, query: &IncomingQuery, looking: Looking, seen: &mut Explanation) -> Step<Decision> {
        if query.wish == Wish::Off {
            return Err("opted out".into());
        }
        let statement = match parse(&query.sql) {
            Ok(statement) => statement,
            Err(ParseError::NotASelect) => return Ok(Decision::NotAQuery),
            Err(error) => return Err(error.to_string()),
        };
        if statement.wish.as_deref() == Some("off") {
            return Err("opted out".into());
        }
        if self.views.is_empty() {
            return Err("no views".into());
        }
        if !may_concern(&statement, &self.views) {
            return Err("no view reads these tables".into());
        }
        if let Some(refusal) = settings::refusal(&query.sql, &query.settings, &statement) {
            return Err(refusal);
        }
        let facts = self.clients.facts(query).await.map_err(|e| e.to_string())?;
        let changed: Vec<(String, String)> = facts.settings.into_iter().map(|name| (name, String::new())).collect();
        if let Some(name) = settings::first_that_matters(&changed, &statement) {
            return Err(format!("the setting {name} of user {} may change the answer", facts.user));
        }
        if !facts.temporary_tables.is_empty() {
            return Err("the session has temporary tables".into());
        }
        let database = query.database.clone().unwrap_or(facts.database);
        let plan = self.plan(query, &statement, &database);
        seen.plan = Some(plan.clone());
        if !plan.matches() {
            return Err(plan.reason());
        }
        let (look, is_earlier) = self.look(&plan, looking, seen).await?;
        let walked = self.walk(query, &statement, &database, &facts.roles, &plan, &look).await;
        let age = look.started_at.elapsed();
        let (look, is_earlier, walked) = match &walked.decision {
            // What an earlier look did not allow, a new one may.
            Decision::Raw { .. } if is_earlier && age >= STALE_AGE_MAX => {
                let (look, is_earlier) = self.look(&plan, Looking::First, seen).await?;
                let walked = self.walk(query, &statement, &database, &facts.roles, &plan, &look).await;
                (look, is_earlier, walked)
            }
            _ => (look, is_earlier, walked),
        };
        let Walked { decision, is_mixed, storages } = walked;
        if let Decision::View { mode, .. } = &decision {
            let proof = match mode {
                Mode::Hybrid => Proof::After,
                Mode::Full if is_mixed => Proof::Behind,
                Mode::Full if is_earlier => Proof::Beside,
                Mode::Full => Proof::Given,
            };
            if looking == Looking::Ahead && self.shadow.takes_next() {
                self.compare(query, statement, &database, &decision, &storages, look.clone());
            }
            seen.confirmation = Some(self.confirmation(look, storages, proof));
        }
        Ok(decision)
    }

    /// Has an answer compared with that of the raw tables, in the background.
    fn compare(
        &self,
        query: &IncomingQuery,
        statement: Statement,
        database: &str,
        decision: &Decision,
        storages: &[String],
        look: Arc<Look>,
    ) {
        let Decision::View { views, sql, .. } = decision else { return };
        let (shadow, client, looker) = (self.shadow.clone(), self.client.clone(), self.looker.clone());
        let (query, database) = (query.clone(), database.to_string());
        let (views, storages, rewritten) = (views.clone(), storages.to_vec(), sql.clone());
        tokio::spawn(async move {
            let subject = Subject { query, statement, database, rewritten, views, storages, look };
            shadow.verify(&client, &looker, &subject).await;
        });
    }

    /// Decides by one look.
    async fn walk(
        &self,
        query: &IncomingQuery,
        statement: &Statement,
        database: &str,
        roles: &[String],
        plan: &Plan,
        look: &Look,
    ) -> Walked {
        let mut walk = Walk::new(plan);
        let settings = settings::carried(&query.settings, statement);
        while let Some(block) = walk.next_block() {
            match self.answer(query, database, roles, &settings, block, look).await {
                Ok((choice, text)) => walk.answered(&choice, text),
                Err(reason) => walk.refused(reason),
            }
        }
        let is_mixed = walk.reads_tables_beside(statement);
        let storages = walk.storages().to_vec();
        Walked { decision: walk.decision(&query.sql), is_mixed, storages }
    }

    fn plan(&self, query: &IncomingQuery, statement: &Statement, database: &str) -> Arc<Plan> {
        let key = (database.to_string(), query.sql.clone());
        if let Some(known) = self.plans.get(&key) {
            return known.clone();
        }
        let plan = Arc::new(plan(statement, database, &self.schema, &self.views));
        if query.sql.len() <= PLAN_KEY_BYTES_MAX {
            if self.plans.len() >= PLANS_MAX {
                self.plans.clear();
            }
            self.plans.insert(key, plan.clone());
        }
        plan
    }

    /// A look at the views that match: a new one, or an earlier one, which is to be confirmed.
    async fn look(&self, plan: &Plan, looking: Looking, seen: &mut Explanation) -> Step<(Arc<Look>, bool)> {
        let mut storages: Vec<&str> = plan
            .replaceable()
            .flat_map(|b| &b.candidates)
            .filter(|c| c.outcome.is_ok())
            .map(|c| c.view.storage.as_str())
            .collect();
        storages.sort_unstable();
        storages.dedup();
        let last = match looking {
            Looking::First => None,
            Looking::Ahead if storages.iter().any(|storage| self.is_unsteady(storage)) => None,
            Looking::Ahead => self.looker.last(&storages, AHEAD_AGE_MAX),
        };
        let (look, is_earlier) = match last {
            Some(last) => (last, true),
            None => (self.looker.look(&storages).await.map_err(|e| e.to_string())?, false),
        };
        seen.coverages = storages.iter().map(|storage| (storage.to_string(), look.coverage(storage))).collect();
        Ok((look, is_earlier))
    }

    /// Whether a decision about a view turned out wrong a short time ago: its sources are changing.
    fn is_unsteady(&self, storage: &str) -> bool {
        self.unsteady.get(storage).is_some_and(|at| at.elapsed() < UNSTEADY_AGE_MAX)
    }

    /// The view and the text that answer one block.
    async fn answer<'a>(
        &self,
        query: &IncomingQuery,
        database: &str,
        roles: &[String],
        settings: &[(String, String)],
        block: &'a PlannedBlock,
        look: &Look,
    ) -> Step<(Choice<'a>, String)> {
        let choice = decide::choose(block, &|view| self.offer(view, look))?;
        self.check_access(query, roles, block, look).await?;
        let name = &choice.view.name;
        let text = |names: &[String]| choice.text(names, &query.sql);
        let names = self.shapes.names(query, database, block, &choice, settings, text).await;
        let names = names.map_err(|why| format!("view {name}: {why}"))?;
        let text = text(&names);
        Ok((choice, text))
    }

    /// How far each of some definitions is, by storage table. Those that are not in force are not told.
    pub async fn standings(&self, views: &[&CatalogView]) -> Result<HashMap<String, Standing>, LookError> {
        let known = views.iter().filter_map(|view| self.catalog.get(view.storage_name()));
        let known: Vec<&CatalogView> = known.collect();
        let storages: Vec<&str> = known.iter().map(|view| view.storage_name()).collect();
        let look = self.looker.look_anew(&storages).await?;
        let is_built = |storage: &str| look.sight(storage).is_some_and(|sight| sight.manifest.is_some());
        let standing = |view: &CatalogView| match self.offer(&view.view, &look) {
            Ok(_) => Standing::MayAnswer,
            Err(_) if is_built(view.storage_name()) => Standing::Built,
            Err(_) => Standing::NeverBuilt,
        };
        Ok(known.into_iter().map(|view| (view.storage_name().to_string(), standing(view))).collect())
    }

    fn offer(&self, view: &View, look: &Look) -> Step<Offer> {
        let Some(known) = self.catalog.get(&view.storage) else { return Err("no view matches".into()) };
        let stale = |why: &Staleness| format!("stale: view {}: {why}", view.name);
        let (covered, cut) = match look.coverage(&view.storage) {
            Coverage::Covered(covered) => (covered, None),
            Coverage::Partial(covered, cut) => (covered, Some(cut)),
            Coverage::Stale(why) => return Err(stale(&why)),
        };
        if let Some(refusal) = self.shadow.refusal(view, &covered.runs) {
            return Err(refusal);
        }
        let raw = match &cut {
            // Little would be gained.
            Some(cut) if cut.rows > covered.source_rows / 4 * 3 => return Err(stale(&cut.because)),
            Some(cut) => {
                let condition = cut.condition().ok_or_else(|| stale(&cut.because))?;
                Some(RawSide { without: cut.whole.iter().cloned().collect(), condition })
            }
            None => None,
        };
        let column = |c: &StorageColumn| StoredColumn { name: c.name.clone(), type_name: c.type_name.clone() };
        let stored = StoredView {
            database: covered.storage.database,
            table: covered.storage.table,
            columns: known.storage.columns.iter().map(column).collect(),
            runs: covered.runs,
            dead: covered.dead,
            raw,
        };
        let rows = covered.rows + cut.map_or(0, |cut| cut.rows);
        Ok(Offer { stored, rows, source_rows: covered.source_rows })
    }

    /// The client must be allowed to read every raw column that the block names, and all rows.
    async fn check_access(
        &self,
        query: &IncomingQuery,
        roles: &[String],
        block: &PlannedBlock,
        look: &Look,
    ) -> Step<()> {
        let read = block.block.columns_read();
        for table in &block.block.tables {
            let mut columns: Vec<String> = read.iter().filter(|(t, _)| t == table).map(|(_, c)| c.clone()).collect();
            columns.sort_unstable();
            // The plan of a bare count does not show policies.
            if columns.is_empty() && look.policies_on(table).next().is_some() {
                return Err(format!("{table} has row policies"));
            }
            self.clients.access(query, roles, table, &columns).await.map_err(|no| no_access(table, &no))?;
        }
        Ok(())
    }
}

impl Accelerator {
    /// The promise that a new look shows of the views in the storage tables `used` what the `earlier` one showed.
    fn confirmation(&self, earlier: Arc<Look>, used: Vec<String>, proof: Proof) -> Confirmation {
        let (confirming, confirmation) = Confirmation::new();
        let (looker, unsteady) = (self.looker.clone(), self.unsteady.clone());
        tokio::spawn(async move {
            let storages: Vec<&str> = used.iter().map(String::as_str).collect();
            let mut outcome = match proof {
                Proof::Beside => verdict(looker.look(&storages).await, &used, |look, of| look.confirms(&earlier, of)),
                Proof::Given | Proof::After | Proof::Behind => Ok(()),
            };
            if outcome.is_ok() {
                if !confirming.begun().await {
                    return;
                }
                if matches!(proof, Proof::After | Proof::Behind) {
                    let anew = proof == Proof::After;
                    let look = if anew { looker.look_anew(&storages).await } else { looker.look(&storages).await };
                    outcome = verdict(look, &used, |look, of| look.confirms(&earlier, of));
                } else if earlier.started_at.elapsed() > RUNS_STAND {
                    let look = looker.look_anew(&storages).await;
                    outcome = verdict(look, &used, |look, of| look.has_runs_of(&earlier, of));
                }
            }
            if outcome.is_err() {
                used.into_iter().for_each(|storage| _ = unsteady.insert(storage, Instant::now()));
            }
            confirming.tell(outcome);
        });
        confirmation
    }
}

fn verdict(
    look: Result<Arc<Look>, LookError>,
    used: &[String],
    holds: impl Fn(&Look, &str) -> Result<(), String>,
) -> Result<(), String> {
    let verdict =
        look.map_err(|e| e.to_string()).and_then(|look| used.iter().try_for_each(|storage| holds(&look, storage)));
    verdict.map_err(|reason| short(&reason))
}

fn no_access(table: &TableName, no: &NoAccess) -> String {
    match no {
        NoAccess::Refused(message) => format!("the user may not read {table}: {message}"),
        NoAccess::Filtered => format!("a row policy applies to the user on {table}"),
        NoAccess::Unclear => format!("the user's rights on {table} could not be told"),
    }
}

/// Reasons go into a header: one line of printable ASCII, not too long.
fn short(reason: &str) -> String {
    const BYTES_MAX: usize = 400;
    let clean: String = reason.chars().map(|c| if c.is_ascii() && !c.is_ascii_control() { c } else { '?' }).collect();
    if clean.len() > BYTES_MAX { format!("{}..", &clean[..BYTES_MAX]) } else { clean }
}
