// One case after the other where the suite allows it, each with as much time as a busy
// machine needs: what is measured is answers, not speed.
export default {
  test: {
    include: ["suite.test.js"],
    testTimeout: 60_000,
    hookTimeout: 60_000,
    reporters: ["json"],
    outputFile: "report.json",
  },
};
