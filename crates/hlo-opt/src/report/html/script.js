// Fills the page's drawings and makes its tables sortable.

const modules = JSON.parse(document.getElementById("data").textContent);

document.querySelectorAll("article").forEach((article) => {
  const {timeline, memory, kinds} = modules[Number(article.dataset.module)];
  const find = (kind) => article.querySelector(`[data-chart="${kind}"]`);
  if (timeline && timeline.length > 0) new Chart(find("timeline"), new Timeline(timeline, kinds));
  else if (find("timeline")) find("timeline").textContent = "No times are known for this number of devices.";
  if (memory) new Chart(find("memory"), new MemoryChart(memory));
});

document.querySelectorAll("table.sortable").forEach(prepareTable);

const links = [...document.querySelectorAll("section > h2")].map((heading) =>
  element("a", {href: "#" + heading.parentElement.id}, heading.textContent));
document.querySelector("nav").append(...(document.querySelectorAll("article").length === 1 ? links : []));
