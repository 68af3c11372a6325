// How the search ranks what it finds: a chapter that lists the term in its `{index}`
// explains it, so it comes before the glossary's sentence and the reference's names.
var Scorer = {
  score: ([docname, title, anchor, description, score]) =>
    /(glossary|api|references|evidence|cheatsheet|reference\/\w+)$/.test(docname) ? score / 4 : score,
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
