//! The views under torture, and how they are redefined.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::TortureError;
use super::changes::{Outcome, Stop};
use super::random::Random;
use super::stage::Stage;

/// Between the two halves of a file that is not written in one step.
const HALF_WRITTEN: Duration = Duration::from_millis(60);

/// Between two redefinitions. A new definition answers nothing before it is built.
const REDEFINE_AFTER_MS: (i64, i64) = (4_000, 16_000);

/// Each file has one view in several definitions, all of which answer the queries that are asked of it.
const FILES: [(&str, &[&str]); 3] = [
    (
        "daily",
        &[
            "SELECT day, region, sum(amount) AS total, count() AS n, min(price) AS cheapest, max(price) AS dearest \
             FROM sales GROUP BY day, region",
            "SELECT region, day, count(), sum(amount), max(price), min(price), uniqExact(product) AS products \
             FROM sales GROUP BY region, day",
            "SELECT day, region, price >= 250 AS dear, sum(amount) AS total, count() AS n, min(price) AS cheapest, \
             max(price) AS dearest FROM sales GROUP BY day, region, dear",
        ],
    ),
    (
        "monthly",
        &[
            "SELECT toYYYYMM(day) AS month, region, sum(amount) AS total, count() AS n FROM sales GROUP BY month, region",
            "SELECT toYYYYMM(day) AS month, region, avg(amount) AS mean, sum(amount), count() FROM sales \
             GROUP BY month, region",
        ],
    ),
    (
        "categories",
        &[
            "SELECT category, day, sum(amount) AS total, count() AS n \
             FROM sales JOIN products ON sales.product = products.product GROUP BY category, day",
            "SELECT day, category, count() AS n, sum(amount) AS total, max(sales.price) AS dearest \
             FROM sales JOIN products ON sales.product = products.product GROUP BY day, category",
        ],
    ),
];

/// A folder of view files.
pub struct Files {
    pub folder: PathBuf,
    consistency: String,
}

impl Files {
    /// Writes the first definition of each view. `consistency` is written to every view.
    pub fn write(folder: PathBuf, consistency: &str) -> Result<Self, TortureError> {
        let files = Self { folder, consistency: consistency.into() };
        std::fs::create_dir_all(&files.folder).map_err(|e| TortureError::folder(&files.folder, e))?;
        for (name, definitions) in FILES {
            let path = files.path(name);
            std::fs::write(&path, files.yaml(name, definitions[0])).map_err(|e| TortureError::folder(&path, e))?;
        }
        Ok(files)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.yaml"))
    }

    fn yaml(&self, name: &str, query: &str) -> String {
        format!("views:\n  - name: {name}\n    query: {query}\n    consistency: {}\n", self.consistency)
    }

    /// Gives one view after the other another definition, by renaming a file that was written aside, by writing in two
    /// steps, or by a broken file first.
    pub async fn redefine(&self, stage: &Stage, mut random: Random, stop: Stop) -> Outcome {
        let mut latest = [0; FILES.len()];
        while !*stop.borrow() {
            tokio::time::sleep(Duration::from_millis(random.between(REDEFINE_AFTER_MS.0, REDEFINE_AFTER_MS.1) as u64))
                .await;
            if *stop.borrow() {
                return Ok(());
            }
            let at = random.below(FILES.len());
            let (name, definitions) = FILES[at];
            latest[at] = (latest[at] + 1 + random.below(definitions.len() - 1)) % definitions.len();
            let text = self.yaml(name, definitions[latest[at]]);
            let path = self.path(name);
            let way = random.below(3);
            replace(&path, &text, way).await.map_err(|e| TortureError::folder(&path, e))?;
            stage.count("redefinitions");
        }
        Ok(())
    }
}

async fn replace(path: &Path, text: &str, way: usize) -> std::io::Result<()> {
    match way {
        0 => {
            let aside = path.with_extension("new");
            std::fs::write(&aside, text)?;
            std::fs::rename(&aside, path)
        }
        1 => {
            std::fs::write(path, &text[..text.len() / 2])?;
            tokio::time::sleep(HALF_WRITTEN).await;
            std::fs::write(path, text)
        }
        _ => {
            std::fs::write(path, "views: [this is no view")?;
            tokio::time::sleep(10 * HALF_WRITTEN).await;
            std::fs::write(path, text)
        }
    }
}
