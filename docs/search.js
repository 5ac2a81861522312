/* Order of the site's search results: a heading that has the words comes first, then symptoms, the
   paths and guides, then the reference; studies, notebooks and the changelog come last. */
var Scorer = {
  score: (result) => {
    const [page, , , , score, , kind] = result;
    const first = ["docs/symptoms", "docs/quickstart", "docs/mpi", "docs/tutorial", "docs/idle", "docs/faq"];
    const last = ["CHANGELOG", "CONTRIBUTING", "docs/json", "docs/columns", "docs/cli"];
    const study = /^(notebooks|profiles|benchmarks)\/|^docs\/(ladder|layers_timed|resnet|robustness|questions|size|release|architecture)$/;
    const place = first.indexOf(page);
    const rank = place >= 0 ? 12 - place : last.includes(page) || study.test(page) ? -10 : 0;
    return score + rank + (kind === "title" ? 20 : 0);
  },
  objNameMatch: 11, objPartialMatch: 6, objPrio: {0: 15, 1: 5, 2: -5}, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
