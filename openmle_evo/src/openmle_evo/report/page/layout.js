/* Places the tree of attempts: each under its first parent, siblings side by side, subtrees as close as they fit. */

function placeTree(attempts) {
  const nodes = new Map(attempts.map((attempt) => [attempt.attempt, { attempt, children: [], x: 0, depth: 0 }]));
  const roots = [];
  for (const node of nodes.values()) {
    const parent = nodes.get(node.attempt.parents[0]);
    (parent && parent !== node ? parent.children : roots).push(node);
  }
  const ordered = [];
  const waiting = [...roots];
  while (waiting.length) {
    const node = waiting.pop();
    ordered.push(node);
    for (const child of node.children) {
      child.depth = node.depth + 1;
      waiting.push(child);
    }
  }
  /* Children come after their parent in `ordered`, so backwards every subtree is whole before it is placed. */
  for (const node of ordered.reverse()) {
    const placed = sideBySide(node.children);
    const first = node.children[0];
    const last = node.children[node.children.length - 1];
    const middle = first ? (first.shift + last.shift) / 2 : 0;
    for (const child of node.children) child.shift -= middle;
    node.left = [0, ...placed.left.map((x) => x - middle)];
    node.right = [0, ...placed.right.map((x) => x - middle)];
  }
  const forest = sideBySide(roots);
  const origin = Math.min(0, ...forest.left);
  for (const root of roots) root.x = root.shift - origin;
  for (const node of ordered.reverse()) for (const child of node.children) child.x = node.x + child.shift;
  return { nodes, columns: Math.max(0, ...forest.right) - origin + 1, rows: Math.max(0, forest.left.length) };
}

/* Sets each subtree's `shift` so that it clears those to its left by one column on every row that they share. */
function sideBySide(subtrees) {
  const left = [];
  const right = [];
  for (const tree of subtrees) {
    let shift = 0;
    for (let row = 0; row < Math.min(right.length, tree.left.length); row += 1) shift = Math.max(shift, right[row] + 1 - tree.left[row]);
    tree.shift = shift;
    tree.left.forEach((x, row) => {
      if (row >= left.length) left.push(x + shift);
      right[row] = tree.right[row] + shift;
    });
  }
  return { left, right };
}
